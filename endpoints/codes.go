package endpoints

// Codes of the errors that the SDK itself reports. A service's own codes should differ.
const (
	CodeHandlerError   = "handler_error"       // the handler returned an error of its own; retryable for a chunk only
	CodePanic          = "panic"               // the handler panicked
	CodeBadPayload     = "bad_payload"         // the payload does not fit the handler's input; not retryable
	CodeBadResult      = "bad_result"          // the result cannot be written as JSON; not retryable
	CodeResultTooLarge = "result_too_large"    // the result does not fit one message; not retryable
	CodeBadRequest     = "bad_request"         // the request could not be read; not retryable
	CodeTimeout        = "timeout"             // the handler did not end in time; retryable
	CodeShutdown       = "shutdown"            // the service stopped before it got to the rest; retryable
	CodeHeldTooLarge   = "held_too_large"      // the chunk's results do not fit what a wrapper holds; not retryable
	CodeDeliveries     = "too_many_deliveries" // the chunk was delivered many times and never answered; retryable
)
