//! Answers as a whole, for clients that do not stream.

use super::error::Result;
use super::generation::Answers;
use rocinante::WholeAnswer;

/// Waits for all answers.
pub async fn collect(mut answers: Answers, n: usize) -> Result<Vec<WholeAnswer>> {
    let mut whole = vec![WholeAnswer::default(); n];
    while let Some((choice, event)) = answers.next().await? {
        whole[choice].add(event);
    }
    Ok(whole)
}
