package api

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/gather/collector"
	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/internal/alerts"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/orchestrator/schedule"
)

// Schemas returns the JSON Schemas of the documents that users write, by name. What decodes a document describes it.
func Schemas() map[string]any {
	of := func(into any) any {
		return strictyaml.Schema(func(doc *strictyaml.Document) error { return doc.Root.Decode(into) })
	}
	return map[string]any{
		"alert": of(&alerts.Spec{}), "collector": collector.Schema(), "connections": of(&connections.Connections{}),
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
