package storetest

import (
	"io"
	"strings"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// Corrections gives each key a payload.
func Corrections(payload string, keys ...string) func() (func(*redo.Correction) error, error) {
	return func() (func(*redo.Correction) error, error) {
		i := 0
		return func(c *redo.Correction) error {
			if i == len(keys) {
				return io.EOF
			}
			c.Key, c.Payload, c.Line = keys[i], []byte(payload), i+2
			i++
			return nil
		}, nil
	}
}

// Correct gives the items of the keys a new payload.
func (b *Bench) Correct(run workqueue.RunID, payload string, keys ...string) redo.Corrected {
	b.Helper()
	out, err := redo.New(b.Store).Correct(b.Context(), redo.CorrectRequest{Run: run, Actor: "ann", Reason: "it was wrong",
		Items: Corrections(payload, keys...)})
	if err != nil {
		b.Fatal(err)
	}
	return out
}

// WantSaid fails the test unless an error says all of this.
func (b *Bench) WantSaid(err error, parts ...string) {
	b.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			b.Errorf("got %v; want it to say %s", err, part)
		}
	}
}
