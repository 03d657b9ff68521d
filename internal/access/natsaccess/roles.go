// Package natsaccess defines access on NATS as a server configuration: an account for the nodes, and one for each
// service and each kind of caller, which imports exactly its own subjects.
//
// Permissions alone are not enough. A server checks the subject that a client publishes to but not the reply subject,
// to which JetStream, services and nodes publish with their own rights. Between accounts a reply subject is mapped
// back into the requester's account, so it cannot reach any other.
//
// A [System] can be written as a server's file with passwords or nkeys, or as an operator's JWTs. It holds no
// secrets; [Keys] does. The package connects to no server. Nothing here is safe for concurrent use.
package natsaccess

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nats-io/nkeys"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// NodeName is the user of the nodes.
const NodeName = "node"

// Grant is a role's name and what it may access.
type Grant struct {
	Name string
	To   []string // endpoints or collectors
}

// ParseGrant parses NAME=WHAT[,WHAT…] or NAME.
func ParseGrant(text string) (Grant, error) {
	name, list, given := strings.Cut(text, "=")
	g := Grant{Name: name}
	if given {
		g.To = strings.Split(list, ",")
	}
	for _, each := range append([]string{name}, g.To...) {
		if err := wire.ValidateName(each); err != nil {
			return Grant{}, fmt.Errorf("%.100q is not NAME=WHAT[,WHAT…]: %w", text, err)
		}
	}
	return g, nil
}

// Roles lists the roles in addition to the nodes. A name may be in several lists: a service whose handlers call, or
// an application that calls and uses trackers.
type Roles struct {
	// Services serve endpoints. An endpoint belongs to one service.
	Services []Grant
	// Callers call endpoints; without a list, all endpoints. Flows call what their service may call.
	Callers []Grant
	// Producers add to collectors.
	Producers []Grant
	// Trackers use the tracker service.
	Trackers []string
	// Viewers may see streams, consumers, events and listeners, but no message of a run.
	Viewers []string
}

type role struct {
	name       string
	serves     []string
	asks       []string
	collectors []string
	tracks     bool
	views      bool
}

func (r Roles) byName() (all []*role, serves map[string]*role, err error) {
	named := map[string]*role{}
	of := func(name string) *role {
		if named[name] == nil {
			named[name] = &role{name: name}
		}
		return named[name]
	}
	serves = map[string]*role{}
	for _, g := range r.Services {
		if len(g.To) == 0 {
			return nil, nil, fmt.Errorf("service %s serves no endpoint", g.Name)
		}
		for _, endpoint := range g.To {
			switch other := serves[endpoint]; {
			case other == nil:
			case other.name == g.Name:
				return nil, nil, fmt.Errorf("service %s serves endpoint %s twice; name it once", g.Name, endpoint)
			default:
				return nil, nil, fmt.Errorf("endpoint %s is of two services, %s and %s", endpoint, other.name, g.Name)
			}
			serves[endpoint] = of(g.Name)
			of(g.Name).serves = append(of(g.Name).serves, endpoint)
		}
	}
	for _, g := range r.Callers {
		asks := g.To
		if len(asks) == 0 {
			asks = slices.Sorted(maps.Keys(serves))
		}
		of(g.Name).asks = union(of(g.Name).asks, asks)
	}
	for _, g := range r.Producers {
		if len(g.To) == 0 {
			return nil, nil, fmt.Errorf("producer %s adds to no collector", g.Name)
		}
		of(g.Name).collectors = union(of(g.Name).collectors, g.To)
	}
	for _, name := range r.Trackers {
		of(name).tracks = true
	}
	for _, name := range r.Viewers {
		of(name).views = true
	}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		all = append(all, named[name])
	}
	return all, serves, check(all, serves)
}

func check(all []*role, serves map[string]*role) error {
	variables := map[string]string{Variable(NodeName): NodeName}
	callers := map[string]string{}
	for _, r := range all {
		if err := wire.ValidateName(r.name); err != nil {
			return fmt.Errorf("role: %w", err)
		}
		if first := r.name[0] | 0x20; first < 'a' || first > 'z' {
			return fmt.Errorf("role %s begins with no letter; there is no variable for its password", r.name)
		}
		if other, taken := variables[Variable(r.name)]; taken {
			return fmt.Errorf("role %s is indistinguishable from %s; give it another name", r.name, other)
		}
		variables[Variable(r.name)] = r.name
		for _, endpoint := range r.asks {
			if serves[endpoint] == nil {
				return fmt.Errorf("%s asks endpoint %s, which no service has", r.name, endpoint)
			}
		}
		for _, caller := range r.callers() {
			if other, taken := callers[caller]; taken {
				return fmt.Errorf("both %s and %s would be answered as caller %s; give one another name", other, r.name, caller)
			}
			callers[caller] = r.name
		}
	}
	return nil
}

// callers returns the names under which a role gets answers: its own and, for calls in its handlers, its endpoints'.
func (r *role) callers() []string {
	if len(r.asks) == 0 {
		return nil
	}
	return union([]string{r.name}, r.serves)
}

// Variable is the server's environment variable for a role's password.
func Variable(name string) string {
	return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) + "_PASSWORD"
}

func union(a, b []string) []string {
	var all []string
	for _, each := range slices.Concat(a, b) {
		if !slices.Contains(all, each) {
			all = append(all, each)
		}
	}
	return all
}

const seedEnding = ".nk"

// Keys are nkeys kept in a directory as seeds. Existing keys are never changed, so their holders keep them when
// others are added.
type Keys struct{ dir string }

// KeysIn returns the keys of a directory, creating it with mode 0700 if needed.
func KeysIn(dir string) (*Keys, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of keys: %w", err)
	}
	return &Keys{dir: dir}, nil
}

func (k *Keys) pair(name string, prefix nkeys.PrefixByte) (nkeys.KeyPair, error) {
	file := filepath.Join(k.dir, name+seedEnding)
	seed, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return k.make(file, prefix)
	}
	if err != nil {
		return nil, fmt.Errorf("read key of %s: %w", name, err)
	}
	pair, err := nkeys.FromSeed(bytes.TrimSpace(seed))
	if err == nil {
		if kind, _, decoding := nkeys.DecodeSeed(bytes.TrimSpace(seed)); decoding != nil || kind != prefix {
			err = errors.New("it is a key of another kind")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read key of %s in %s: %w", name, file, err)
	}
	return pair, nil
}

func (k *Keys) make(file string, prefix nkeys.PrefixByte) (nkeys.KeyPair, error) {
	pair, err := nkeys.CreatePair(prefix)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	seed, err := pair.Seed()
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	return pair, write(file, append(seed, '\n'))
}

func write(file string, content []byte) error {
	temporary := file + ".new"
	if err := os.WriteFile(temporary, content, 0o600); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if err := os.Chmod(temporary, 0o600); err != nil { // an existing file keeps its mode
		return fmt.Errorf("write: %w", err)
	}
	if err := os.Rename(temporary, file); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// ConfName is the name of the server's file.
const ConfName = "server.conf"

// WriteNkeys writes the server's file and a file NAME.nk with a seed per user into a directory. It returns the files,
// the server's first. Users may still connect with the key in NAME.old.nk, if there is one.
func (s *System) WriteNkeys(dir string) ([]string, error) {
	keys, err := KeysIn(dir)
	if err != nil {
		return nil, err
	}
	public := map[string][]string{}
	files := []string{filepath.Join(dir, ConfName)}
	for _, a := range s.Accounts {
		name := a.User.Name
		for _, of := range []string{name, name + ".old"} {
			if _, err := os.Stat(filepath.Join(dir, of+seedEnding)); of != name && errors.Is(err, fs.ErrNotExist) {
				continue
			}
			pair, err := keys.pair(of, nkeys.PrefixByteUser)
			if err != nil {
				return nil, err
			}
			key, err := pair.PublicKey()
			if err != nil {
				return nil, fmt.Errorf("key of %s: %w", of, err)
			}
			public[name] = append(public[name], key)
		}
		files = append(files, filepath.Join(dir, name+seedEnding))
	}
	return files, write(files[0], []byte(s.Conf(public)))
}
