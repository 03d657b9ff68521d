package kernel

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
	"/trackers/{id}": "tracker",
}

// scopeOf returns the scope of an operation, and the kind of the object in its path.
func scopeOf(path string, op *huma.Operation) (scope RoleScope, kind string) {
	parts := strings.SplitN(path, "/", 4)
	if kind = owned[strings.Join(parts[:min(len(parts), 3)], "/")]; kind != "" {
		return OfObject, kind
	}
	scope, _ = op.Metadata[metaScope].(RoleScope)
	return scope, ""
}

// In sets the scope of an operation that names no object in its path.
func In(scope RoleScope, op huma.Operation) huma.Operation { return noted(op, metaScope, scope) }

type roleKey struct{}

// Allows reports whether the caller has a role for the object of the request, or installation-wide.
func Allows(ctx context.Context, needed access.Role) bool {
	role, limited := ctx.Value(roleKey{}).(access.Role)
	return !limited || role.Allows(needed)
}

// limitToNamespaces returns the context of a request, limited to what its caller may see, or why they may not use the
// route. A nil caller may do everything.
func (s *Kernel) limitToNamespaces(r *http.Request, route *Route, who *access.Principal) (context.Context, error) {
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
	if !wide {
		needed := route.Role
		if route.Scope == OfObject {
			needed = access.Watcher // to see it at all
		}
		granted := who.Namespaces(needed)
		seesAll := route.Scope == OfObject && who.Role.Allows(needed) && len(granted) > 0 // and its owner decides
		if !seesAll && (len(granted) == 0 || asked != "" && !slices.Contains(granted, asked)) {
			return ctx, lacksRole(who, route, asked)
		}
		if asked == "" && !seesAll {
			scope.Namespaces = granted
		}
	}
	if asked != "" {
		if err := checkNamespace(ctx, s, asked); err != nil {
			return ctx, err
		}
	}
	if route.Scope == Into && scope.Into == "" && scope.Namespaces != nil &&
		!slices.Contains(scope.Namespaces, workqueue.DefaultNamespace) {
		if len(scope.Namespaces) > 1 {
			return ctx, BadInput("namespace: missing; use one of " + strings.Join(scope.Namespaces, ", ") + " (--namespace)")
		}
		scope.Into = scope.Namespaces[0]
	}
	if route.Scope == OfObject && who != nil && len(who.Grants) > 0 && !who.Role.Allows(access.Admin) {
		owner, err := ownerOf(workqueue.InScope(ctx, scope), s, r, route)
		role := who.RoleIn(owner)
		if err == nil && !role.Allows(route.Role) {
			err = lacksRole(who, route, owner)
		}
		if err != nil {
			return ctx, err
		}
		// A name is resolved once more: it must not lead elsewhere meanwhile.
		ctx, scope = context.WithValue(ctx, roleKey{}, role), workqueue.Scope{Namespaces: []string{owner}, Into: owner}
	}
	return workqueue.InScope(ctx, scope), nil
}

func checkNamespace(ctx context.Context, s *Kernel, name string) error {
	if err := workqueue.CheckNamespace(name); err != nil || name == workqueue.DefaultNamespace {
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
func ownerOf(ctx context.Context, s *Kernel, r *http.Request, route *Route) (owner string, err error) {
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
		err = Seen(fmt.Errorf("%s %q: %w", kind, Cut(ref, MaxEchoed), err), "tranche "+kind+" list")
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
