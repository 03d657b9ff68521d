package wire

// Codes of the errors that the SDK itself reports. A service's own codes should differ.
const (
	CodeHandlerError   = "handler_error"       // the handler returned an error of its own; retryable for a chunk only
	CodePanic          = "panic"               // the handler panicked
	CodeBadPayload     = "bad_payload"         // the payload does not fit the handler's input; not retryable
	CodeBadPart        = "bad_part"            // a part does not fit what the handler reads it as; not retryable
	CodeBadResult      = "bad_result"          // the result cannot be written, or is nested too deep; not retryable
	CodeResultTooLarge = "result_too_large"    // over MaxResult, or over a message for who is no node; not retryable
	CodeBadRequest     = "bad_request"         // the request could not be read; not retryable
	CodeTimeout        = "timeout"             // the handler did not end in time; retryable
	CodeShutdown       = "shutdown"            // the service stopped before it got to the rest; retryable
	CodeHeldTooLarge   = "held_too_large"      // the chunk's results do not fit what a wrapper holds; not retryable
	CodeBadQuery       = "bad_query"           // what a flow asks cannot be written as JSON; not retryable
	CodeQueryTooLarge  = "query_too_large"     // what a flow asks does not fit one message; not retryable
	CodeBadAnswer      = "bad_answer"          // an answer does not fit the flow's type; not retryable
	CodeUnanswered     = "unanswered"          // an endpoint left the item out that a flow has asked; retryable
	CodeBadState       = "bad_state"           // a flow's state cannot be written as JSON; not retryable
	CodeStateTooLarge  = "state_too_large"     // a flow's state is over MaxState; not retryable
	CodeNoNextStage    = "no_next_stage"       // the last stage of a flow asks, or goes on; not retryable
	CodeFlowFull       = "flow_full"           // there is no room for the state of a chunk; retryable
	CodeFlowChanged    = "flow_changed"        // a chunk was suspended by another version of the flow; retryable
	CodeStackTooDeep   = "stack_too_deep"      // over MaxStack endpoints would wait for one another; not retryable
	CodeOverloaded     = "overloaded"          // a direct request found the service busy; retryable
	CodeDeliveries     = "too_many_deliveries" // the chunk was delivered many times and never answered; retryable
)
