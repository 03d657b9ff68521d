package alerts

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/tranchehq/tranche/gather/fetch/httpfetch"
	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/internal/connections"
)

// Config configures Receivers.
type Config struct {
	Connections *connections.Connections // secrets and the mail server; nil: neither
	// Transport sends to hosts of others and blocks forbidden addresses, like httpfetch's.
	Transport http.RoundTripper
	// Programs are the programs that rules may run, by their names in rules.
	Programs map[string]string
	// Public is the dashboard's public URL, for links; empty: no links.
	Public string
	// Timeout limits an attempt; 0: httpfetch.DefaultTimeout.
	Timeout time.Duration
}

type channel interface {
	// check returns what is wrong with the settings, and in which field; "": the whole.
	check() (field string, err error)
	// reachable returns why this node cannot use it.
	reachable(r *Receivers) (field string, err error)
	// tell makes one attempt to send a message.
	tell(ctx context.Context, r *Receivers, m *Message) httpfetch.Delivery
}

// channels are all kinds of receivers. To add one, add a row.
//
//nolint:gochecknoglobals // a table
var channels = []struct {
	name string
	make func() channel
}{
	{"webhook", func() channel { return &hook{} }},
	{"slack", func() channel { return &chat{body: slackBody} }},
	{"teams", func() channel { return &chat{body: teamsBody} }},
	{"email", func() channel { return &email{} }},
	{"command", func() channel { return new(program) }}, // a name of serve --alert-program
}

// Receiver is the receiver of a rule's messages.
type Receiver struct {
	Kind  string // the channel's name
	given int    // number of receivers in the rule

	channel
}

// ReadYAML implements [strictyaml.Reader].
func (r *Receiver) ReadYAML(v strictyaml.Value) error {
	fields := make([]strictyaml.Field, len(channels))
	for i, c := range channels {
		fields[i] = strictyaml.Field{Name: c.name, Read: func(v strictyaml.Value) error {
			r.Kind, r.channel = c.name, c.make()
			r.given++
			return v.Decode(r.channel)
		}}
	}
	return v.Fields(fields...)
}

func (r *Receiver) checkIn(doc *strictyaml.Document) error {
	if r.given != 1 {
		names := make([]string, len(channels))
		for i := range channels {
			names[i] = channels[i].name
		}
		last := len(names) - 1
		return doc.Fail("to", "want one of %s and %s; for several receivers apply several rules",
			strings.Join(names[:last], ", "), names[last])
	}
	if field, err := r.check(); err != nil {
		return doc.Fail(r.field(field), "%v", err)
	}
	return nil
}

func (r *Receiver) field(name string) string {
	if name == "" {
		return "to." + r.Kind
	}
	return "to." + r.Kind + "." + name
}

// MarshalJSON writes the channel under its name.
func (r Receiver) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]channel{r.Kind: r.channel})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (r *Receiver) UnmarshalJSON(text []byte) error {
	var named map[string]json.RawMessage
	if err := json.Unmarshal(text, &named); err != nil {
		return err
	}
	for _, c := range channels {
		if of, is := named[c.name]; is {
			r.Kind, r.channel = c.name, c.make()
			return json.Unmarshal(of, r.channel)
		}
	}
	return fmt.Errorf("no channel is known of %.80s", text)
}

// Receivers sends messages to receivers.
type Receivers struct {
	conns    *connections.Connections
	sender   *httpfetch.Sender
	programs map[string]string
	public   string
	timeout  time.Duration
}

// NewReceivers returns a sender. The error names the invalid program or address.
func NewReceivers(config Config) (*Receivers, error) {
	sender, err := httpfetch.NewSender(httpfetch.SenderConfig{
		Connections: config.Connections, Transport: config.Transport, Timeout: config.Timeout,
	})
	if err != nil {
		return nil, err
	}
	r := &Receivers{conns: config.Connections, sender: sender, programs: config.Programs, public: config.Public,
		timeout: config.Timeout}
	if r.conns == nil {
		r.conns = &connections.Connections{}
	}
	if r.timeout <= 0 {
		r.timeout = httpfetch.DefaultTimeout
	}
	for name, path := range r.programs {
		if !ruleNames.MatchString(name) || !filepath.IsAbs(path) {
			return nil, fmt.Errorf("alerts: program %q is %q; want a name of A-Z a-z 0-9 _ - and an absolute path", name, path)
		}
	}
	if err := checkPublic(r.public); err != nil {
		return nil, err
	}
	return r, nil
}

func checkPublic(text string) error {
	u, err := url.Parse(text)
	if text != "" && (err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" ||
		u.Scheme != "https" && u.Scheme != "http") {
		return fmt.Errorf("alerts: the dashboard's address is %.80q; want a URL like https://tranche.bank.example", text)
	}
	return nil
}

// BadReceiverError is returned for a receiver that cannot be reached.
type BadReceiverError struct {
	Field string // of the rule, as in to.webhook
	Why   string
}

func (e *BadReceiverError) Error() string { return e.Field + ": " + e.Why }

// Check refuses a receiver that this node cannot reach, with a *BadReceiverError.
func (r *Receivers) Check(to *Receiver) error {
	if field, err := to.reachable(r); err != nil {
		return &BadReceiverError{to.field(field), r.conns.Redact(err.Error())}
	}
	return nil
}

func (r *Receivers) tell(ctx context.Context, to *Receiver, m *Message) httpfetch.Delivery {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	return to.channel.tell(ctx, r, m)
}

// unreachable is an attempt that this node cannot make. It is retried: the operator's file may be fixed, or another
// node may allow it.
func (r *Receivers) unreachable(err error) httpfetch.Delivery {
	return httpfetch.Delivery{Why: r.conns.Redact(err.Error())}
}

func (r *Receivers) unwritable(err error) httpfetch.Delivery {
	return httpfetch.Delivery{GiveUp: true, Why: r.conns.Redact(err.Error())}
}
