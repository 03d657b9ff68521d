package conformance

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// recorder writes down what suite and service say to each other, a line of JSON for each message.
type recorder struct {
	out   io.Writer
	check atomic.Pointer[string] // that is made
	err   error                  // of the first line that could not be written, once it has ended
}

// utterance is a message in the record. A body that is no JSON stands as base64.
type utterance struct {
	At      time.Time       `json:"at"`
	Check   string          `json:"check,omitempty"`
	Subject string          `json:"subject"`
	Reply   string          `json:"reply,omitempty"`
	Headers nats.Header     `json:"headers,omitempty"`
	JSON    json.RawMessage `json:"json,omitempty"`
	Text    string          `json:"text,omitempty"`
	Base64  string          `json:"base64,omitempty"`
}

// follow records until ctx ends. It hears the requests and the service's pulls, beside what the suite listens to.
func (r *recorder) follow(ctx context.Context, nc *nats.Conn, endpoint string) (done <-chan struct{}, err error) {
	came := make(chan *nats.Msg, 1<<14)
	for _, subject := range []string{
		wire.WorkSubject(endpoint), fmt.Sprintf("$JS.API.CONSUMER.MSG.NEXT.%s.%s", wire.StreamWork, endpoint),
	} {
		if _, err := nc.ChanSubscribe(subject, came); err != nil {
			return nil, fmt.Errorf("listen to %s: %w", subject, err)
		}
	}
	if err := tap(nc, endpoint, came); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-ctx.Done():
				return
			case msg := <-came:
				r.note(msg)
			}
		}
	}()
	return ended, nil
}

func (r *recorder) note(msg *nats.Msg) {
	line := utterance{At: time.Now().UTC(), Subject: msg.Subject, Reply: msg.Reply, Headers: msg.Header}
	if check := r.check.Load(); check != nil {
		line.Check = *check
	}
	switch plain := msg.Header.Get(wire.HeaderEncoding) == ""; {
	case plain && json.Valid(msg.Data):
		line.JSON = msg.Data
	case plain && printable(msg.Data):
		line.Text = string(msg.Data)
	default:
		line.Base64 = base64.StdEncoding.EncodeToString(msg.Data)
	}
	text, err := json.Marshal(line)
	if err == nil {
		_, err = r.out.Write(append(text, '\n'))
	}
	if r.err == nil {
		r.err = err
	}
}

// printable reports whether data is text of ASCII, as acknowledgements are.
func printable(data []byte) bool {
	for _, c := range data {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return true
}
