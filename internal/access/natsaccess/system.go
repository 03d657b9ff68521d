package natsaccess

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// NodeAccount is the account of the nodes. It has the streams.
const NodeAccount = "TRANCHE"

// System is who may say what: the account of the nodes first, then the others by name.
type System struct{ Accounts []*Account }

// Account is one of the accounts, with the one user that it has.
type Account struct {
	Name      string
	JetStream bool
	Exports   []*Export
	Imports   []Import
	Mappings  []Mapping
	User      User
	// MaxConnections it may have, over all servers of a cluster, and MaxSubscriptions each of them; 0: any number.
	MaxConnections, MaxSubscriptions int
}

// What a role may have of the server, so that none can use up what there is for all: a server has 65,536 connections,
// unless it is told otherwise. Each call that waits for an answer is a subscription.
const (
	DefaultMaxConnections   = 1000
	DefaultMaxSubscriptions = 10_000
)

// Export is a subject that others may publish to, or, of a stream, subscribe to.
type Export struct {
	Subject string
	Stream  bool     // what is published goes to the importers; otherwise their requests come here
	To      []string // the accounts that may import it
	// Many says that a request may have several answers, and Threshold how long one is waited for at most.
	Many      bool
	Threshold time.Duration
}

// Import is a subject of another account.
type Import struct {
	Account string
	Subject string
	Stream  bool
	Local   string // what it is called here; empty when that is the same
}

// Mapping has what is published to a subject go to another one.
type Mapping struct{ From, To string }

// User is who connects to an account.
type User struct {
	Name string
	// Publish are the subjects that it may publish to, beside answers to what it was asked. nil is everything, which in an
	// account of its own is little.
	Publish []string
}

// account returns an account by its name.
func (s *System) account(name string) *Account {
	i := slices.IndexFunc(s.Accounts, func(a *Account) bool { return a.Name == name })
	return s.Accounts[i]
}

// request lets an account publish to a subject of another one.
func (a *Account) request(of *Account, subject string, many bool, threshold time.Duration) {
	if a.has(of, subject) {
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
	if a.User.Publish != nil { // the server looks after the mapping
		a.User.Publish = append(a.User.Publish, cmp.Or(local, subject))
	}
}

// hear lets an account subscribe to a subject of another one, which exports it with others: exports may not overlap.
func (a *Account) hear(of *Account, subject, among string) {
	export := of.export(among, true)
	if !slices.Contains(export.To, a.Name) {
		export.To = append(export.To, a.Name)
	}
	a.Imports = append(a.Imports, Import{Account: of.Name, Subject: subject, Stream: true})
}

// has reports whether a subject is imported already.
func (a *Account) has(of *Account, subject string) bool {
	return slices.ContainsFunc(a.Imports, func(i Import) bool { return i.Account == of.Name && i.Subject == subject })
}

// export returns the export of a subject, which is made when there is none.
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

// apiPrefix begins the subjects of JetStream's API. The one of an account other than the nodes' only says that there is
// no JetStream.
const apiPrefix = "$JS.API."

// localAPI is what a subject of JetStream's API is called in another account, or empty for other subjects.
func localAPI(subject string) string {
	rest, api := strings.CutPrefix(subject, apiPrefix)
	if !api {
		return ""
	}
	return wire.NodesAPIPrefix + rest
}
