package pull

import (
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
)

// status is what the server says of a pull.
type status struct {
	code, description string
	left              amount // what the pull asked for and the server will not send
	known             bool   // the server has said what is left
}

// Error ends a pull for another reason than time or size: the consumer is to be looked up again.
type Error struct{ Code, Description string }

func (e *Error) Error() string {
	if e.Description == "" {
		return "the server answered a pull with status " + e.Code
	}
	return fmt.Sprintf("the server answered a pull with status %s, %s", e.Code, e.Description)
}

// statusOf returns the status that a message is, or nil when it is one of the stream.
func statusOf(msg *nats.Msg) *status {
	code := msg.Header.Get("Status")
	if code == "" || len(msg.Data) > 0 || msg.Reply != "" {
		return nil
	}
	s := &status{code: code, description: msg.Header.Get("Description")}
	messages, err := strconv.Atoi(msg.Header.Get("Nats-Pending-Messages"))
	if err != nil {
		return s
	}
	bytes, err := strconv.Atoi(msg.Header.Get("Nats-Pending-Bytes"))
	s.left, s.known = amount{messages, bytes}, err == nil
	return s
}

// heartbeat tells that the pull is open.
func (s *status) heartbeat() bool { return s.code == "100" }

// err is nil when time or size has ended the pull.
func (s *status) err() error {
	switch {
	case s.code == "408" || s.code == "404",
		s.code == "409" && (s.description == "Batch Completed" || s.description == "Message Size Exceeds MaxBytes"):
		return nil
	case s.code == "503":
		return nats.ErrNoResponders
	}
	return &Error{s.code, s.description}
}
