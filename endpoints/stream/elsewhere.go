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
	// elsewhereTimeout is how long JetStream may be silent on a live connection before other servers of the cluster are
	// asked: this one may be partitioned while they have elected new leaders.
	elsewhereTimeout = 4 * time.Second
	// firstElsewhere and longestElsewhere bound the pauses between rounds, doubled each time. Elections take seconds,
	// and a round just before the end of one should not delay the next for long.
	firstElsewhere   = 2 * time.Second
	longestElsewhere = 5 * time.Second
	// dialTimeout bounds connecting to another server, and its answer.
	dialTimeout = time.Second
	// quorumTimeout is how long a leader may lack contact with its followers. Their heartbeats come every second;
	// servers themselves take ten seconds.
	quorumTimeout = 4 * time.Second
)

// errElsewhere is passed to the error handler when the connection changes its server.
var errElsewhere = errors.New("JetStream does not answer over this connection, and does elsewhere; changing the server")

// errStale is the answer of a leader without followers. errLeaderless is that of a server that has stopped leading,
// which still answers for its group, with wrong contact times.
var (
	errStale      = errors.New("the leader has not heard of the other servers for seconds")
	errLeaderless = errors.New("it has no leader")
)

// elsewhere moves a connection to another server if JetStream does not answer here but does there. The connection
// itself would stay, since its server answers pings. Without any leader it stays: it might otherwise move from
// servers about to elect one to the partitioned one.
type elsewhere struct {
	mu sync.Mutex
	// silent maps each query that other servers can answer to its first unanswered attempt since the last answer, and ""
	// to that of all queries: a server may reach some leaders only.
	silent   map[string]time.Time
	question string // the last such query
	looking  bool
	next     time.Time // earliest next round
	round    int       // determines the pause after it
}

// Note records the outcome of a query to JetStream that needs the subjects.
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

// questionOf returns a query about JetStream's state that is permitted along with the subjects, or "".
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

// unanswered records an unanswered query and starts a round when that persists.
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

// look asks the other servers, for some seconds, and moves to one that answers if the query is still unanswered here.
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
	_ = nc.ForceReconnect() // fails only if the connection is closed
}

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

// answersAt reports whether a leader with quorum answers the query at another server.
func answersAt(nc *nats.Conn, server, question string) bool {
	opts := nc.Opts // with the credentials
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

// Leads returns errStale or errLeaderless if a group has no quorum according to its leader.
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

// Unanswered reports whether err means that JetStream is unavailable or has no quorum.
func Unanswered(err error) bool {
	if refused, ok := errors.AsType[*jetstream.APIError](err); ok {
		return refused.Code == statusUnavailable
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) ||
		errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrNoStreamResponse) ||
		errors.Is(err, pull.ErrSilent) || errors.Is(err, errStale) || errors.Is(err, errLeaderless)
}

const statusUnavailable = 503

// LoginRefused reports whether err is a server's refusal of the user.
func LoginRefused(err error) bool {
	return slices.ContainsFunc([]error{
		nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired,
	}, func(refusal error) bool { return errors.Is(err, refusal) })
}

// UserRefused returns the refusal that stops all sending (login, or creating or publishing to a stream), or "".
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

// unwritable returns the subjects of streams, and for creating them, that were recently denied.
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
