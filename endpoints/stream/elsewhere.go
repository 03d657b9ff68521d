package stream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/pull"
)

const (
	// elsewhereTimeout is how long JetStream may be silent over a connection that stands, until it is asked at the other
	// servers of the cluster: the one at hand may be cut off from them, and they have elected leaders without it.
	elsewhereTimeout = 4 * time.Second
	// firstElsewhere and longestElsewhere are the pauses between two such rounds, doubled from one to the other. An
	// election takes seconds, and whoever looked just before its end is not to stay where it is for long.
	firstElsewhere   = 2 * time.Second
	longestElsewhere = 5 * time.Second
	// dialTimeout bounds the connection to another server, and its answer.
	dialTimeout = time.Second
	// quorumTimeout is how long a leader has not heard of the others when it no longer counts as one. A server takes ten
	// seconds to see that itself; heartbeats come every second.
	quorumTimeout = 4 * time.Second
)

// errElsewhere is told to a connection's error handler when it is taken to another server.
var errElsewhere = errors.New("JetStream does not answer over this connection, and does elsewhere; changing the server")

// errStale is the answer of a leader that has lost the others, errLeaderless that of a server that has stopped leading:
// it answers for the group anyway, and says of the others, whom it has lost, that it has just heard of them.
var (
	errStale      = errors.New("the leader has not heard of the other servers for seconds")
	errLeaderless = errors.New("it has no leader")
)

// elsewhere takes a connection to another server when JetStream is silent over it and answers there. The connection
// itself would stay: its server answers its pings. While no one leads it leaves things as they are, lest it go from the
// servers that are about to elect a leader to the one that is cut off.
type elsewhere struct {
	mu sync.Mutex
	// silent has, of each question that can be asked elsewhere, when it was first asked without an answer since its last
	// one, and under "" that of all questions together: a server may reach the leaders of some and not of others.
	silent   map[string]time.Time
	question string // the last such question
	looking  bool
	next     time.Time // the next round comes no sooner
	round    int       // by which the pause after it grows
}

// Note takes how a question to JetStream ended, for which certain subjects are needed.
func (e *elsewhere) Note(nc *nats.Conn, subjects []string, err error) {
	question := questionOf(subjects)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.question = cmp.Or(question, e.question)
	switch {
	case err == nil:
		delete(e.silent, "")
		delete(e.silent, question)
		e.round = 1
	case !Unanswered(err):
	case !nc.IsConnected():
		clear(e.silent)
	default:
		for _, of := range slices.Compact([]string{"", question}) {
			e.unanswered(nc, of, err)
		}
	}
}

// questionOf is a question on which JetStream tells of something of ours, and that who needs these subjects may ask, or
// "".
func questionOf(subjects []string) (question string) {
	for _, subject := range subjects {
		switch {
		case strings.HasPrefix(subject, "$JS.API.CONSUMER.INFO.") && !strings.HasSuffix(subject, ">"):
			question = subject
		case subject == "$JS.API.STREAM.>":
			question = "$JS.API.STREAM.INFO." + wire.StreamWork
		}
	}
	return question
}

// unanswered notes that no one answered a question, and asks elsewhere when that goes on.
func (e *elsewhere) unanswered(nc *nats.Conn, question string, err error) {
	now := time.Now()
	since, silent := e.silent[question]
	switch {
	case !silent:
		if errors.Is(err, errStale) || errors.Is(err, errLeaderless) {
			now = now.Add(-quorumTimeout)
		}
		if e.silent == nil {
			e.silent = map[string]time.Time{}
		}
		e.silent[question] = now
	case now.Sub(since) >= elsewhereTimeout && now.After(e.next) && e.question != "" && !e.looking:
		e.looking = true
		go e.look(nc, question, cmp.Or(question, e.question))
	}
}

// look asks the other servers, and goes to them when one answers, while what was silent still is. It takes seconds at
// the most.
func (e *elsewhere) look(nc *nats.Conn, silent, question string) {
	found := false
	here := nc.ConnectedAddr()
	for _, server := range nc.Servers() {
		if !found && !strings.HasSuffix(server, "/"+here) {
			found = answersAt(nc, server, question)
		}
	}
	if !e.looked(silent, found && nc.IsConnected()) {
		return
	}
	if tell := nc.ErrorHandler(); tell != nil {
		tell(nc, nil, errElsewhere)
	}
	_ = nc.ForceReconnect() // to the next one; it fails only when the connection is closed
}

// looked notes the end of a round, and reports whether to go elsewhere.
func (e *elsewhere) looked(silent string, found bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.looking = false
	e.round++
	e.next = time.Now().Add(backoff.Nth(firstElsewhere, longestElsewhere, e.round))
	if _, still := e.silent[silent]; !found || !still {
		return false
	}
	clear(e.silent)
	e.round = 1
	return true
}

// answersAt reports whether JetStream answers a question at another server, by a leader who has a quorum.
func answersAt(nc *nats.Conn, server, question string) bool {
	opts := nc.Opts // with what it takes to be let in
	opts.Url, opts.Servers, opts.AllowReconnect, opts.RetryOnFailedConnect = server, nil, false, false
	opts.Timeout, opts.Name = dialTimeout, opts.Name+" looks elsewhere"
	opts.ClosedCB, opts.DisconnectedErrCB, opts.ConnectedCB, opts.ReconnectedCB = nil, nil, nil, nil
	opts.ReconnectErrCB, opts.DiscoveredServersCB, opts.LameDuckModeHandler = nil, nil, nil
	opts.AsyncErrorCB = func(*nats.Conn, *nats.Subscription, error) {}
	if opts.User == "" && opts.Token == "" {
		opts.User, opts.Password, opts.Token = fromURLs(nc.Opts.Servers)
	}
	there, err := opts.Connect()
	if err != nil {
		return false
	}
	defer there.Close()
	msg, err := there.Request(question, nil, dialTimeout)
	if err != nil {
		return false
	}
	var said struct {
		Error   *jetstream.APIError    `json:"error"`
		Cluster *jetstream.ClusterInfo `json:"cluster"`
	}
	return json.Unmarshal(msg.Data, &said) == nil && (said.Error == nil || said.Error.Code != statusUnavailable) &&
		Leads(said.Cluster) == nil
}

// fromURLs returns the user, or the token, that stands in the addresses that a connection was given.
func fromURLs(servers []string) (user, password, token string) {
	for _, server := range servers {
		at, err := url.Parse(strings.TrimSpace(server))
		if err != nil || at.User == nil {
			continue
		}
		if password, given := at.User.Password(); given {
			return at.User.Username(), password, ""
		}
		return "", "", at.User.Username()
	}
	return "", "", ""
}

// Leads returns errStale or errLeaderless when whoever said this of a stream or consumer has lost the others.
func Leads(c *jetstream.ClusterInfo) error {
	if c == nil || len(c.Replicas) == 0 {
		return nil
	}
	if c.Leader == "" {
		return errLeaderless
	}
	heard := 1 // the leader itself
	for _, r := range c.Replicas {
		if !r.Offline && r.Active < quorumTimeout {
			heard++
		}
	}
	if 2*heard > len(c.Replicas)+1 {
		return nil
	}
	return errStale
}

// Unanswered tells the errors of a JetStream that is not there, or has no quorum, from the answers of one that is.
func Unanswered(err error) bool {
	if refused, ok := errors.AsType[*jetstream.APIError](err); ok {
		return refused.Code == statusUnavailable
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) ||
		errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrNoStreamResponse) ||
		errors.Is(err, pull.ErrSilent) || errors.Is(err, errStale) || errors.Is(err, errLeaderless)
}

// statusUnavailable is the code of a JetStream without a quorum.
const statusUnavailable = 503

// LoginRefused reports whether an error is a NATS server's refusal of the user.
func LoginRefused(err error) bool {
	return slices.ContainsFunc([]error{
		nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired,
	}, func(refusal error) bool { return errors.Is(err, refusal) })
}

// UserRefused says what NATS refuses the user of a connection without which nothing is sent: to log in, to make a
// stream, or
// to publish to one. Empty: nothing that is known.
func UserRefused(nc *nats.Conn) string {
	if !nc.IsConnected() {
		if err := nc.LastError(); LoginRefused(err) {
			return fmt.Sprintf("NATS refuses its user (%v)", err)
		}
		return ""
	}
	if subjects := PermissionsOf(nc).unwritable(); len(subjects) > 0 {
		return "NATS denies its user to publish to " + strings.Join(subjects, ", ")
	}
	return ""
}

// unwritable are the subjects of streams, and those for making one, that the user was lately denied to publish to.
func (p *Permissions) unwritable() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	found := map[string]bool{}
	for _, d := range p.denied {
		if d.err.Op == OpPublish && time.Since(d.last) < denialLife &&
			(!strings.HasPrefix(d.subject, wire.APIPrefix) || strings.HasPrefix(d.subject, wire.APIPrefix+"STREAM.CREATE.")) {
			found[d.err.Subject] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}
