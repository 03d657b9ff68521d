package natsaccess

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// NodeAccount is the account of the nodes, which has the streams.
const NodeAccount = "TRANCHE"

// System is all accounts: the nodes' first, then the rest by name.
type System struct {
	Accounts []*Account
	Valid    time.Duration // of credentials by JWT; 0: no end
}

// Account is an account with its one user.
type Account struct {
	Name      string
	JetStream bool
	Exports   []*Export
	Imports   []Import
	Mappings  []Mapping
	User      User
	// MaxConnections is per cluster and MaxSubscriptions per server; 0: unlimited.
	MaxConnections, MaxSubscriptions int
}

// Limits of a role, so that none can exhaust the server, which by default has 65,536 connections. Each waiting call
// uses a subscription.
const (
	DefaultMaxConnections   = 1000
	DefaultMaxSubscriptions = 10_000
)

// Export is a subject that other accounts may publish to or, for a stream, subscribe to.
type Export struct {
	Subject string
	Stream  bool     // true: exported to subscribers; false: a service that takes requests
	To      []string // accounts that may import it
	// Many allows several answers per request; Threshold is how long to wait for one.
	Many      bool
	Threshold time.Duration
}

// Import is a subject of another account.
type Import struct {
	Account string
	Subject string
	Stream  bool
	Local   string // local name; empty: the same
}

// Mapping redirects what is published to a subject.
type Mapping struct{ From, To string }

// User is the user of an account.
type User struct {
	Name string
	// Publish are the subjects it may publish to, in addition to answers; nil: all, which in a separate account is
	// little.
	Publish []string
}

func (s *System) account(name string) *Account {
	i := slices.IndexFunc(s.Accounts, func(a *Account) bool { return a.Name == name })
	return s.Accounts[i]
}

// request lets an account publish to a subject of another.
func (a *Account) request(of *Account, subject string, many bool, threshold time.Duration) {
	if slices.ContainsFunc(a.Imports, func(i Import) bool { return i.Account == of.Name && i.Subject == subject }) {
		return
	}
	export := of.export(subject, false)
	export.To = append(export.To, a.Name)
	export.Many, export.Threshold = many, threshold
	a.Imports = append(a.Imports, Import{Account: of.Name, Subject: subject, Local: localAPI(subject)})
	local := localAPI(subject)
	if local != "" {
		a.Mappings = []Mapping{{From: apiPrefix + ">", To: wire.NodesAPIPrefix + ">"}}
	}
	if a.User.Publish != nil { // the server handles the mapping
		a.User.Publish = append(a.User.Publish, cmp.Or(local, subject))
	}
}

// hear lets an account subscribe to a subject of another. It is exported within a wider subject: exports must not
// overlap.
func (a *Account) hear(of *Account, subject, among string) {
	export := of.export(among, true)
	if !slices.Contains(export.To, a.Name) {
		export.To = append(export.To, a.Name)
	}
	a.Imports = append(a.Imports, Import{Account: of.Name, Subject: subject, Stream: true})
}

func (a *Account) export(subject string, stream bool) *Export {
	for _, e := range a.Exports {
		if e.Subject == subject && e.Stream == stream {
			return e
		}
	}
	e := &Export{Subject: subject, Stream: stream}
	a.Exports = append(a.Exports, e)
	return e
}

// apiPrefix is the prefix of JetStream's API. In accounts other than the nodes' it only reports that there is no
// JetStream.
const apiPrefix = "$JS.API."

func localAPI(subject string) string {
	rest, api := strings.CutPrefix(subject, apiPrefix)
	if !api {
		return ""
	}
	return wire.NodesAPIPrefix + rest
}
