package intake_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/intake/row"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

const messages = 1000 // of 20 kB: more than is read ahead

// What is removed while a stream is read is noticed, whatever it was; what comes in meanwhile is no part of the run.
func TestAStreamThatChangesWhileItIsRead(t *testing.T) {
	t.Parallel()
	nc := testenv.Conn(t, testenv.NATS(t))
	js := testenv.Must(jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute)))(t)
	for name, c := range map[string]struct {
		change  func(jetstream.Stream) error
		subject string
		want    string
	}{
		"PURGED": {func(s jetstream.Stream) error { return s.Purge(t.Context()) }, "", "were removed"},
		"DELETED": {func(s jetstream.Stream) error { return s.DeleteMsg(t.Context(), messages-1) }, "",
			"1 of the 1000 messages"},
		"FILTERED": {func(s jetstream.Stream) error { return s.DeleteMsg(t.Context(), messages-1) }, "FILTERED.1",
			"1 of the 500 messages"},
		"GONE":  {func(jetstream.Stream) error { return js.DeleteStream(t.Context(), "GONE") }, "", "deleted"},
		"GROWS": {func(jetstream.Stream) error { return publish(t, nc, "GROWS", 10) }, "", ""},
		"OTHER": {func(s jetstream.Stream) error { return s.DeleteMsg(t.Context(), messages) }, "OTHER.1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"},
				Storage: jetstream.MemoryStorage})
			if err == nil {
				err = publish(t, nc, name, messages)
			}
			testenv.NoError(t, err)
			r := testenv.Must(intake.OpenStream(t.Context(), js, intake.StreamSource{Name: name, Subject: c.subject},
				intake.Config{}))(t)
			defer func() { _ = r.Close() }()
			var item row.Item
			n := 0
			for ; err == nil; n++ {
				if n == 10 {
					err = c.change(s)
				}
				if err == nil {
					err = r.Next(&item)
				}
			}
			whole := messages
			if c.subject != "" {
				whole /= 2
			}
			switch {
			case c.want == "" && (!errors.Is(err, io.EOF) || n-1 != whole):
				t.Errorf("after %d of %d messages: %v", n-1, whole, err)
			case c.want != "" && (errors.Is(err, io.EOF) || !strings.Contains(err.Error(), c.want)):
				t.Errorf("after %d messages: %v; want %s", n-1, err, c.want)
			}
		})
	}
}

// What cannot be a name is not sent: the server ends the connection permanently over a line that is too long.
func TestNamesThatAreNoStreams(t *testing.T) {
	t.Parallel()
	nc := testenv.Conn(t, testenv.NATS(t))
	js := testenv.Must(jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute)))(t)
	testenv.Must(js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}}))(t)
	for _, bad := range []string{
		strings.Repeat("x", 5000), strings.Repeat("\x80", 90), "a b", "a\r\nPING", "\x00", "\xff", ".a.", "a..b",
		"TRANCHE_EVENT",
	} {
		for _, source := range []intake.StreamSource{{Name: bad}, {Name: "S", Subject: bad + "\x00"}} {
			_, err := intake.OpenStream(t.Context(), js, source, intake.Config{})
			if _, ok := errors.AsType[*row.InputError](err); !ok || len(err.Error()) > 400 {
				t.Errorf("%.20q of %.20q: %T %v", source.Subject, source.Name, err, err)
			}
		}
	}
	testenv.Same(t, nc.FlushTimeout(time.Minute), nil, "the connection")
}

// publish has a JetStream of its own: what others publish is not to hold it up.
func publish(t *testing.T, nc *nats.Conn, stream string, n int) error {
	t.Helper()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
	if err != nil {
		return err
	}
	fill := strings.Repeat("x", 20_000)
	for i := range n {
		_, err := js.PublishAsync(fmt.Sprintf("%s.%d", stream, (i+1)%2), fmt.Appendf(nil, `{"id":%d,"x":%q}`, i, fill))
		if err != nil {
			return err
		}
	}
	<-js.PublishAsyncComplete()
	return nil
}
