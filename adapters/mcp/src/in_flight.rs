//! The requests of one client that are not answered yet.
//!
//! rmcp knows them by numbers of ours and not by the client's ids: it would mix up two requests of
//! one id, also when the first one was cancelled and only its clean-up goes on. So a second request
//! can be refused without touching the first, and an id is free again as soon as its request is
//! answered or cancelled.

use std::collections::HashMap;
use std::sync::Arc;

use rmcp::model::{JsonRpcMessage, RequestId, ServerJsonRpcMessage};

use crate::window::Load;

#[derive(Debug, Default)]
pub(crate) struct InFlight {
    last: i64,
    numbers: HashMap<RequestId, i64>,
    requests: HashMap<i64, (RequestId, Arc<Load>)>,
}

impl InFlight {
    pub(crate) fn contains(&self, id: &RequestId) -> bool {
        self.numbers.contains_key(id)
    }

    /// Takes a request whose id is not in use; gives what rmcp knows it by.
    pub(crate) fn begin(&mut self, id: RequestId, load: Arc<Load>) -> RequestId {
        self.last += 1;
        self.numbers.insert(id.clone(), self.last);
        self.requests.insert(self.last, (id, load));
        RequestId::Number(self.last)
    }

    /// Forgets a request that its client cancelled; gives what rmcp knows it by. Its load is held
    /// on by whoever works on it.
    pub(crate) fn cancel(&mut self, id: &RequestId) -> Option<RequestId> {
        let number = self.numbers.remove(id)?;
        self.requests.remove(&number);
        Some(RequestId::Number(number))
    }

    /// Puts the client's id into a message of rmcp; false for an answer that nobody waits for.
    pub(crate) fn address(&mut self, message: &mut ServerJsonRpcMessage) -> bool {
        let id = match message {
            JsonRpcMessage::Response(response) => &mut response.id,
            JsonRpcMessage::Error(error) => match &mut error.id {
                Some(id) => id,
                None => return true,
            },
            JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => return true,
        };
        let RequestId::Number(number) = id else {
            return false;
        };
        let Some((client_id, _load)) = self.requests.remove(number) else {
            return false;
        };
        self.numbers.remove(&client_id);
        *id = client_id;
        true
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::{ErrorData, ServerResult};

    use super::*;
    use crate::window::{Kind, Window};

    fn load() -> Arc<Load> {
        Arc::new(Window::default().take(Kind::Passing, 1))
    }

    #[test]
    fn a_late_answer_to_a_cancelled_request_is_not_that_of_the_next_one_of_its_id() {
        let mut in_flight = InFlight::default();
        let id = RequestId::String("a".into());
        let first = in_flight.begin(id.clone(), load());
        assert!(in_flight.contains(&id));
        assert_eq!(in_flight.cancel(&id), Some(first.clone()));
        assert_eq!(in_flight.cancel(&id), None);
        let second = in_flight.begin(id.clone(), load());
        assert_ne!(first, second);
        let answer = |to| JsonRpcMessage::response(ServerResult::empty(()), to);
        assert!(!in_flight.address(&mut answer(first)));
        let mut message = answer(second.clone());
        assert!(in_flight.address(&mut message));
        assert_eq!(message.into_response().map(|(_, id)| id), Some(id.clone()));
        assert!(!in_flight.contains(&id), "free again");
        let error = ErrorData::internal_error("twice", None);
        assert!(!in_flight.address(&mut JsonRpcMessage::error(error, Some(second))));
    }
}
