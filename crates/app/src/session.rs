//! `roci run --session FILE`: a conversation that a later run continues, with the model's computed state.

use crate::report::HintExt;
use anyhow::{Context, Result, anyhow};
use rocinante::{Adapter, Message, Model, Session, TokenId};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// What was said.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SavedConversation {
    pub system: Option<String>,
    pub messages: Vec<SessionMessage>,
    /// With `--raw`, everything so far.
    pub raw: Option<String>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionMessage {
    pub role: String,
    pub content: String,
}

/// A session and where it is written.
#[derive(Debug)]
pub struct OpenSession {
    path: PathBuf,
    pub conversation: SavedConversation,
}

impl OpenSession {
    /// Reads the file, if there is one.
    pub fn open(path: &Path, is_raw: bool) -> Result<Self> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            return Err(anyhow!("--session {}: there is no folder {}", path.display(), folder.display()))
                .hint("create it first");
        }
        if !path.exists() {
            return Ok(Self { path: path.to_owned(), conversation: SavedConversation::default() });
        }
        let start_anew = || format!("delete {} to start anew, or name another file", path.display());
        let session = Session::open(path).map_err(anyhow::Error::from).with_hint(start_anew)?;
        let conversation: SavedConversation = serde_json::from_slice(session.text())
            .with_context(|| format!("{} was written by another version of roci", path.display()))
            .with_hint(start_anew)?;
        let (was_raw, is_new) = (conversation.raw.is_some(), conversation == SavedConversation::default());
        if was_raw != is_raw && !is_new {
            let (what, flag) = if was_raw { ("a text", "add --raw") } else { ("a conversation", "leave out --raw") };
            return Err(anyhow!("the session {} is {what}", path.display()))
                .hint(format!("{flag}, or name another file"));
        }
        Ok(Self { path: path.to_owned(), conversation })
    }

    pub fn messages(&self) -> Vec<Message> {
        self.conversation.messages.iter().map(|said| Message::new(said.role.as_str(), said.content.as_str())).collect()
    }

    pub fn set_messages(&mut self, messages: &[Message]) {
        let said = |message: &Message| SessionMessage { role: message.role.clone(), content: message.content.clone() };
        self.conversation.messages = messages.iter().map(said).collect();
    }

    /// Writes the file. `tokens` is what the model has read and said.
    pub fn save(&self, model: &Model, tokens: &[TokenId], adapter: Option<&Adapter>) -> Result<()> {
        let text = serde_json::to_vec(&self.conversation)?;
        model.save_session(&self.path, text, tokens, adapter).map_err(anyhow::Error::from)
    }
}
