package api

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/internal/alerts"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/ingest"
	"github.com/tranchehq/tranche/orchestrator/schedule"
	"github.com/tranchehq/tranche/workqueue"
)

// documents describes a kind of document, like alerts, that users write, save and delete. List is the answer to a
// list, View one document.
type documents[List, View any] struct {
	noun string // for example alert; used in its operations, path and command
	most int64  // bytes read of a text, to report that it is too large

	scope                           apicore.RoleScope // of its list; applying is Into that namespace
	lists, gets                     string            // summaries of operations
	applies, pauses, resumes, drops documentWords

	list    func(ctx context.Context, after string, limit int) (List, error) // nil: there is no paged list
	get     func(ctx context.Context, name string) (View, error)
	version func(*View) int
	apply   func(ctx context.Context, text *documentText) (workqueue.AppliedDocument, error)
	set     setDocument // nil: it cannot be paused
	drop    setDocument // nil: its kind has a separate operation
}

type documentWords struct{ summary, more string }

type setDocument = func(ctx context.Context, name, state, actor string) (workqueue.ControlledDocument, error)

// DocumentPath is the document in an operation's path.
type DocumentPath struct {
	Document string `path:"name" doc:"its name"`
}

// DocumentChange is a change of a document.
type DocumentChange struct {
	DocumentPath
	apicore.Actor
}

type documentText struct {
	apicore.Actor
	Name    string `query:"name" doc:"its name, if the document has none"`
	IfMatch string `header:"If-Match" doc:"its ETag: apply only if it is still the newest version"`
	IfNone  string `header:"If-None-Match" enum:"*" doc:"apply only if none exists with this name"`
	RawBody []byte `contentType:"application/yaml"`
}

func (t *documentText) document(name string, spec []byte) workqueue.Document {
	newest, _ := documentVersion(t.IfMatch) // it was checked
	if t.IfNone != "" {
		newest = -1
	}
	return workqueue.Document{Name: name, Spec: spec, Source: string(t.RawBody), Newest: newest}
}

type documentPage struct {
	After string `query:"after" doc:"only those whose name follows this one"`
	Limit int    `query:"limit" minimum:"1" maximum:"500" default:"100"`
}

func registerDocuments[List, View any](k *apicore.Core, api huma.API, d *documents[List, View]) {
	path, see := "/"+d.noun+"s", "tranche "+d.noun+" list"
	op := func(verb, method, below string, words documentWords) huma.Operation {
		return apicore.ByOperator(huma.Operation{OperationID: verb + "-" + d.noun, Method: method, Path: path + below,
			Summary: words.summary, Description: words.more})
	}
	if d.list != nil {
		apicore.Register(k, api, apicore.In(d.scope, apicore.Get("list-"+d.noun+"s", path, d.lists)),
			func(ctx context.Context, in *documentPage) (List, error) {
				list, err := d.list(ctx, in.After, in.Limit)
				return list, apicore.Seen(err, see)
			})
	}
	apply := op("apply", http.MethodPost, "", d.applies)
	apply.MaxBodyBytes = d.most
	if d.scope != apicore.Installation {
		apply = apicore.In(apicore.Into, apply)
	}
	apicore.Register(k, api, apply, func(ctx context.Context, in *documentText) (
		none workqueue.AppliedDocument, err error,
	) {
		if err := apicore.CheckText("name", in.Name, apicore.MaxNameBytes); err != nil {
			return none, err
		}
		if _, err := documentVersion(in.IfMatch); err != nil {
			return none, err
		}
		return d.apply(ctx, in)
	})
	get := apicore.Get("get-"+d.noun, path+"/{name}", d.gets)
	apicore.RegisterTagged(k, api, get, func(ctx context.Context, in *struct {
		DocumentPath
		apicore.Known
	},
	) (View, error) {
		view, err := d.get(ctx, in.Document)
		return view, apicore.Seen(err, see)
	}, func(view *View) (string, error) {
		sum, err := apicore.PrintOf(*view)
		return fmt.Sprintf(`"%d-%s"`, d.version(view), sum), err
	})
	for _, change := range []struct {
		op    huma.Operation
		state string
		set   setDocument
	}{
		{op("pause", http.MethodPost, "/{name}/pause", d.pauses), workqueue.DocumentPaused, d.set},
		{op("resume", http.MethodPost, "/{name}/resume", d.resumes), workqueue.DocumentActive, d.set},
		{op("delete", http.MethodDelete, "/{name}", d.drops), workqueue.DocumentDeleted, d.drop},
	} {
		if change.set != nil {
			apicore.Register(k, api, change.op, func(ctx context.Context, in *DocumentChange) (
				workqueue.ControlledDocument, error,
			) {
				out, err := change.set(ctx, in.Document, change.state, in.Name)
				return out, apicore.Seen(err, see)
			})
		}
	}
}

// documentVersion returns the version at the start of a document's ETag; 0 without one. The rest of the ETag covers
// what an apply cannot undo, like the runs of a plan.
func documentVersion(tag string) (int, error) {
	if tag == "" {
		return 0, nil
	}
	number, _, _ := strings.Cut(strings.Trim(strings.TrimSpace(tag), `"`), "-")
	version, err := strconv.Atoi(number)
	if err != nil || version < 1 || version > apicore.MaxPlanVersion {
		return 0, apicore.BadInput("If-Match is not the current ETag; send the one from its GET")
	}
	return version, nil
}

// Schemas returns the JSON Schemas of the documents that users write, by name. What decodes a document describes it.
func Schemas() map[string]any {
	of := func(into any) any {
		return strictyaml.Schema(func(doc *strictyaml.Document) error { return doc.Root.Decode(into) })
	}
	return map[string]any{
		"alert": of(&alerts.Spec{}), "collector": ingest.Schema(), "connections": of(&connections.Connections{}),
		"plan": gather.PlanSchema(), "schedule": of(&schedule.Spec{}),
	}
}

// serveSchemas answers with a schema, by NAME.json: for editors, so without a login, and to be cached.
func serveSchemas() http.HandlerFunc {
	all := Schemas()
	return func(w http.ResponseWriter, r *http.Request) {
		name, _ := strings.CutSuffix(r.PathValue("file"), ".json")
		text, err := json.Marshal(all[name])
		if all[name] == nil || err != nil {
			apicore.WriteProblem(w, http.StatusNotFound, "no such schema; use one of "+
				strings.Join(slices.Sorted(maps.Keys(all)), ".json, ")+".json")
			return
		}
		w.Header().Set("Content-Type", "application/schema+json")
		w.Header().Set("Cache-Control", "public, max-age=3600")
		_, _ = w.Write(text)
	}
}
