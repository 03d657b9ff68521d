package apicore

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/identity"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// NamespaceHeader names the namespace that a request is about. The query parameter namespace does the same.
const NamespaceHeader = "Tranche-Namespace"

// WholeInstallation refuses a request for a namespace, where all of them are concerned.
func WholeInstallation(ctx context.Context) error {
	if r, ok := ctx.Value(requestKey{}).(*http.Request); ok && r.Header.Get(NamespaceHeader) != "" {
		return BadInput("this concerns all namespaces; leave out the namespace (--namespace, " + NamespaceHeader + ")")
	}
	return nil
}

// RoleScope says in which namespaces the caller of a route needs its role.
type RoleScope string

// The scopes. Installation is that of a route without one.
const (
	Installation RoleScope = ""      // in all: the caller's role must be installation-wide
	Anywhere     RoleScope = "any"   // in any: the request sees and changes only what is in those
	Into         RoleScope = "into"  // in the one that will own what the request makes
	OfObject     RoleScope = "owner" // in the one that owns the object in the path
)

// owned are the paths of objects that a namespace owns, by the kind of object. All below them has the scope OfObject.
var owned = map[string]string{ //nolint:gochecknoglobals // constants
	"/runs/{run}": "run", "/plans/{name}": "plan", "/schedules/{name}": "schedule", "/collectors/{name}": "collector",
	"/trackers/{id}": "tracker", "/alerts/{name}": "alert",
}

// In sets the scope of an operation that names no object in its path.
func In(scope RoleScope, op huma.Operation) huma.Operation {
	return marked(op, func(r *Route) { r.Scope = scope })
}

type roleKey struct{}

// Allows reports whether the caller has a role for the object of the request, or installation-wide.
func Allows(ctx context.Context, needed access.Role) bool {
	role, limited := ctx.Value(roleKey{}).(access.Role)
	return !limited || role.Allows(needed)
}

// limitToNamespaces returns the context of a request, limited to what its caller may see, or why they may not use the
// route. A nil caller may do everything.
func (s *Core) limitToNamespaces(r *http.Request, route *Route, who *access.Principal) (context.Context, error) {
	ctx, asked := r.Context(), r.Header.Get(NamespaceHeader)
	if who != nil {
		ctx = context.WithValue(ctx, roleKey{}, who.Role)
	}
	wide := who == nil || who.Role.Allows(route.Role)
	switch {
	case route.Role == access.None, route.Scope == Installation && wide:
		return ctx, nil
	case route.Scope == Installation:
		return ctx, lacksRole(who, route, "")
	}
	scope := workqueue.Scope{Into: asked}
	if asked != "" {
		scope.Namespaces = []string{asked}
	}
	var err error
	if !wide {
		scope.Namespaces, err = granted(who, route, asked)
	}
	if err == nil {
		err = checkNamespace(ctx, s, asked)
	}
	switch {
	case err != nil:
		return ctx, err
	case route.Scope == Into:
		err = chooseInto(&scope)
	case route.Scope == OfObject && who != nil && len(who.Grants) > 0 && !who.Role.Allows(access.Admin):
		return inOwner(workqueue.InScope(ctx, scope), s, r, route, who)
	}
	return workqueue.InScope(ctx, scope), err
}

// granted returns the namespaces in which a caller without the route's role has it by grants; nil: all, if the owner of
// the object decides.
func granted(who *access.Principal, route *Route, asked string) ([]string, error) {
	needed := route.Role
	if route.Scope == OfObject {
		needed = access.Watcher // to see it at all
	}
	namespaces := who.Namespaces(needed)
	seesAll := route.Scope == OfObject && who.Role.Allows(needed) && len(namespaces) > 0
	switch {
	case !seesAll && (len(namespaces) == 0 || asked != "" && !slices.Contains(namespaces, asked)):
		return nil, lacksRole(who, route, asked)
	case asked != "":
		return []string{asked}, nil
	case seesAll:
		return nil, nil
	}
	return namespaces, nil
}

// chooseInto sets where a request without a namespace makes something: in the default one, or else the only one of the
// scope.
func chooseInto(scope *workqueue.Scope) error {
	in := scope.Namespaces
	if scope.Into != "" || in == nil || slices.Contains(in, workqueue.DefaultNamespace) {
		return nil
	}
	if len(in) > 1 {
		return BadInput("namespace: missing; use one of " + strings.Join(in, ", ") + " (--namespace)")
	}
	scope.Into = in[0]
	return nil
}

// inOwner limits a request to the namespace that owns its object, in which the caller needs the route's role.
func inOwner(ctx context.Context, s *Core, r *http.Request, route *Route, who *access.Principal) (
	context.Context, error,
) {
	owner, err := ownerOf(ctx, s, r, route)
	role := who.RoleIn(owner)
	if err == nil && !role.Allows(route.Role) {
		err = lacksRole(who, route, owner)
	}
	// A name is resolved again: it must not lead elsewhere meanwhile.
	return workqueue.InScope(context.WithValue(ctx, roleKey{}, role),
		workqueue.Scope{Namespaces: []string{owner}, Into: owner}), err
}

func checkNamespace(ctx context.Context, s *Core, name string) error {
	if name == "" || name == workqueue.DefaultNamespace {
		return nil
	}
	if err := workqueue.CheckNamespace(name); err != nil {
		return err
	}
	ctx, cancel := s.Looking(ctx)
	defer cancel()
	known, err := identity.New(s.Store).HasNamespace(ctx, name)
	if err == nil && !known {
		err = &workqueue.UnknownNamespaceError{Name: name}
	}
	return err
}

// ownerOf returns the namespace of the object in a path. One out of the context's scope does not exist.
func ownerOf(ctx context.Context, s *Core, r *http.Request, route *Route) (owner string, err error) {
	ctx, cancel := s.Looking(ctx)
	defer cancel()
	isWildcard := func(part string) bool { return strings.HasPrefix(part, "{") }
	_, pattern, _ := strings.Cut(route.Pattern, " ") // the mux, too, matches it part by part
	parts, at := strings.Split(r.URL.EscapedPath(), "/"), slices.IndexFunc(strings.Split(pattern, "/"), isWildcard)
	if at < 0 || at >= len(parts) {
		return "", workqueue.ErrNotFound
	}
	ref, err := url.PathUnescape(parts[at])
	if err != nil {
		return "", BadInput("the path is not well escaped")
	}
	kind, id := route.kind, ref
	if kind == "run" {
		run, err := inspect.New(s.Store).Resolve(ctx, ref)
		if err != nil {
			return "", err
		}
		id = run.String()
	}
	owner, err = identity.New(s.Store).NamespaceOf(ctx, kind, id)
	if err == nil && !workqueue.Sees(ctx, owner) {
		err = workqueue.ErrNotFound
	}
	if errors.Is(err, workqueue.ErrNotFound) {
		err = Seen(fmt.Errorf("%s %q: %w", kind, Echo(ref), err), "tranche "+kind+" list")
	}
	return owner, err
}

func lacksRole(who *access.Principal, route *Route, in string) error {
	where, token := "", "--role "+string(route.Role)
	switch {
	case in != "":
		where, token = " in namespace "+in, "--grant "+in+"="+string(route.Role)
	case len(who.Grants) > 0 && route.Scope == Installation:
		where = " in the whole installation"
	}
	return &deniedError{http.StatusForbidden, "this needs the role " + string(route.Role) + where + ", and " + who.Name +
		" has the role " + access.GrantsText(who.Role, who.Grants) + "; an admin makes tokens: tranche token create " + token}
}
