package fanout

import "fmt"

// Code says what is wrong, for programs. The HTTP API has the same ones.
type Code string

// The codes.
const (
	CodeBadRequest   Code = "bad_request"    // the request cannot be read
	CodeBadSetting   Code = "bad_setting"    // a member's value is out of range
	CodeBadID        Code = "bad_id"         // a text is no id of an item, or of a batch
	CodeBadRange     Code = "bad_range"      // a text is no range
	CodeNothing      Code = "nothing_given"  // no item is named
	CodeTooMany      Code = "too_many_given" // more ids or ranges than a call may bring
	CodeZeroItems    Code = "zero_items"     // an addition of none
	CodeTooManyItems Code = "too_many_items" // an addition of more than a batch takes
	CodeNoBatch      Code = "no_such_batch"
	CodeNoGroup      Code = "no_such_group"     // the batch has no such group
	CodePastSize     Code = "index_past_size"   // the group has no such item
	CodeWrongBatch   Code = "wrong_batch"       // an id of another batch than the call is about
	CodeBatchTaken   Code = "batch_taken"       // the id belongs to another batch
	CodeKeyConflict  Code = "key_conflict"      // the key was used before, for something else
	CodeNotOpen      Code = "batch_not_open"    // an addition to a batch that takes no more
	CodeEnded        Code = "batch_ended"       // the batch was cancelled, or has expired
	CodeWebhook      Code = "webhook_refused"   // the operator's file does not allow it
	CodeTooLarge     Code = "answer_too_large"  // ask for less at once
	CodeBusy         Code = "too_many_requests" // ask again
	CodeUnavailable  Code = "unavailable"       // PostgreSQL cannot be reached, or is too slow: ask again
	CodeInternal     Code = "internal"          // the log of the server says what
)

// Error is an answer that says no. The call has changed nothing, unless the code is [CodeUnavailable] or
// [CodeInternal]: then it may have, and can be made again all the same.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`         // what is wrong and what helps, for people
	Place   string `json:"place,omitempty"` // like ids[17]: the member that is meant
	Value   string `json:"value,omitempty"` // what stands there
}

func (e *Error) Error() string {
	if e.Place == "" {
		return e.Message
	}
	return fmt.Sprintf("%s: %s", e.Place, e.Message)
}

// Temporary reports whether the same call may succeed later.
func (e *Error) Temporary() bool {
	return e.Code == CodeBusy || e.Code == CodeUnavailable || e.Code == CodeInternal
}
