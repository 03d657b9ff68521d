package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/workqueue/identity"
)

const seeNamespaces = "tranche namespace list"

// NamespaceList lists the namespaces in which the caller has a role.
type NamespaceList struct {
	Namespaces []identity.NamespaceView `json:"namespaces" nullable:"false"`
}

// NamespacePath is the namespace in an operation's path.
type NamespacePath struct {
	Namespace string `path:"name" doc:"its name: up to 32 lower-case letters, digits and hyphens" example:"team-a"`
}

// DeletedNamespace names a deleted namespace.
type DeletedNamespace struct {
	Name string `json:"name"`
}

func (s *adminRoutes) registerNamespaces(api huma.API) {
	store := identity.New(s.Store)
	list := func(ctx context.Context, _ *struct{}) (NamespaceList, error) {
		all, err := store.Namespaces(ctx)
		return NamespaceList{all}, err
	}
	apicore.Register(s.Core, api, apicore.In(apicore.Anywhere, apicore.ByWatcher(apicore.Get("list-namespaces",
		"/namespaces", "List the namespaces that the caller sees, with quotas"))), list)
	apicore.Register(s.Core, api, apicore.ByAdmin(huma.Operation{
		OperationID: "set-namespace", Method: http.MethodPut, Path: "/namespaces/{name}",
		Summary: "Create a namespace, or change its quotas",
		Description: "The quotas replace the former ones. max_in_flight applies from the next claim; the rest to later " +
			"starts, adds, reruns and resumes.",
	}), func(ctx context.Context, in *struct {
		NamespacePath
		apicore.Actor
		Body identity.Quotas
	},
	) (NamespaceList, error) {
		if err := store.SetNamespace(ctx, in.Namespace, in.Body, in.Name); err != nil {
			return NamespaceList{}, err
		}
		return list(ctx, nil)
	})
	apicore.Register(s.Core, api, apicore.ByAdmin(apicore.Delete("delete-namespace", "/namespaces/{name}",
		"Delete an empty namespace", "")), func(ctx context.Context, in *struct {
		NamespacePath
		apicore.Actor
	},
	) (DeletedNamespace, error) {
		err := store.DeleteNamespace(ctx, in.Namespace, in.Name)
		return DeletedNamespace{in.Namespace}, apicore.Seen(err, seeNamespaces)
	})
}
