package natsaccess

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// NodeName is the user of the nodes.
const NodeName = "node"

// Grant names a role and what it is given.
type Grant struct {
	Name string
	To   []string // endpoints or collectors
}

// ParseGrant reads NAME=WHAT[,WHAT…] or NAME alone.
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

// Roles says who there is beside the nodes. One name may stand in several lists: that is a service whose handlers call,
// or an application that calls and uses trackers.
type Roles struct {
	// Services serve endpoints. An endpoint belongs to one service.
	Services []Grant
	// Callers ask endpoints; without any, all that there are. Flows ask what their service may ask.
	Callers []Grant
	// Producers add to collectors.
	Producers []Grant
	// Trackers use the tracker service.
	Trackers []string
	// Viewers look at streams, consumers, events and who listens, and at no message of a run.
	Viewers []string
}

// role is everything that a name is given.
type role struct {
	name       string
	serves     []string
	asks       []string
	collectors []string
	tracks     bool
	views      bool
}

// byName returns the roles sorted by name, and which role serves each endpoint.
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

// check refuses names that cannot be told apart, and callers of what nobody serves.
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
			return fmt.Errorf("role %s cannot be told from %s; give it another name", r.name, other)
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

// callers are the names under which a role is answered: its own, and, of calls in its handlers, those of its endpoints.
func (r *role) callers() []string {
	if len(r.asks) == 0 {
		return nil
	}
	return union([]string{r.name}, r.serves)
}

// Variable is the environment variable of the server that has the password of a role.
func Variable(name string) string {
	return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) + "_PASSWORD"
}

// union returns what is in either list, once each, in that order.
func union(a, b []string) []string {
	var all []string
	for _, each := range slices.Concat(a, b) {
		if !slices.Contains(all, each) {
			all = append(all, each)
		}
	}
	return all
}
