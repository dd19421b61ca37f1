//! Errors in Dynamo's words, which tell its frontend whether another worker should be asked.

use dynamo_backend_common::{BackendError, DynamoError, ErrorType};
use engine::FailureKind;
use rocinante::Error;

fn failure(kind: BackendError, text: impl Into<String>) -> DynamoError {
    DynamoError::builder().error_type(ErrorType::Backend(kind)).message(text.into()).build()
}

/// The request asks for something that this worker, and any other of its kind, cannot do. Clients see the reason.
pub fn refused(text: impl Into<String>) -> DynamoError {
    let (kind, text) = (ErrorType::Backend(BackendError::InvalidArgument), text.into());
    DynamoError::builder().error_type(kind).public_message(text.clone()).message(text).build()
}

/// There is no model: it was not loaded yet, or it is gone.
pub fn shut_down(text: impl Into<String>) -> DynamoError {
    failure(BackendError::EngineShutdown, text)
}

/// The answer ended without its last event.
pub fn incomplete() -> DynamoError {
    failure(BackendError::StreamIncomplete, "the answer ended in the middle")
}

/// An error of ours. A request whose engine died was tried again in the next one already: no other worker is asked, since
/// it may be the request that kills engines.
pub fn told(error: &Error) -> DynamoError {
    let kind = match error {
        Error::Engine(engine::Error::QueueFull { .. }) | Error::ConstraintBusy(_) => ErrorType::WorkerOverloaded,
        Error::Engine(engine::Error::Stopped { .. }) | Error::Stopped(_) => {
            ErrorType::Backend(BackendError::EngineShutdown)
        }
        // Whatever else the engine refuses before it begins is wrong with the request.
        Error::EmptyPrompt | Error::PromptTooLong { .. } | Error::Encoder | Error::Constraint(_) | Error::Engine(_) => {
            return refused(error.to_string());
        }
        Error::Failed { kind: FailureKind::Request | FailureKind::Constraint, .. } => {
            return refused(error.to_string());
        }
        _ => ErrorType::Backend(BackendError::Unknown),
    };
    DynamoError::builder().error_type(kind).message(error.to_string()).build()
}
