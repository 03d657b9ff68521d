package api

import (
	"slices"

	"github.com/tranchehq/tranche/internal/api/runs"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api/kernel"
)

// Examples of items, by the type of the body.
const (
	exampleCSV    = "id,name,year\nCUST-1,Ann,2026\nCUST-2,Bob,2026\n"
	exampleNDJSON = `{"id":"CUST-1","name":"Ann","year":2026}` + "\n" + `{"id":"CUST-2","name":"Bob","year":2026}` + "\n"
	examplePlan   = "name: year-end\nchunk: 500\nsteps:\n  accounts: {endpoint: accounts}\n" +
		"  statement: {endpoint: compose, needs: [accounts]}\n"
	exampleParquet = "PAR1…"
)

// bodyExamples are examples of JSON bodies, by operation.
func bodyExamples() map[string]any {
	type fields = map[string]any
	all := fields{"all": true, "reason": "the bank's ledger is being repaired"}
	why := fields{"reason": "the bank's ledger is being repaired"}
	return map[string]any{
		"rerun":                fields{"codes": []string{"TIMEOUT"}, "canary": 100, "canary_auto": true, "chunk": 50},
		"reset":                fields{"step": "accounts", "keys": []string{"CUST-7"}, "reason": "the account was corrected"},
		"accept":               fields{"groups": []string{"5f2c9a10"}, "reason": "these accounts are closed"},
		"correct-item":         fields{"payload": fields{"id": "CUST-7", "balance": "120.50"}, "reason": "was a number"},
		"note-run":             fields{"text": "the bank sends the rest of the accounts at 22:00"},
		"put-aside":            fields{"kind": "dead_letters", "subject": "lost", "for": "8h", "reason": "until the release"},
		"take-condition":       fields{"kind": "no_listeners", "subject": "compose"},
		"bring-back":           fields{"kind": "dead_letters"},
		"pause-run":            why,
		"pause-all-runs":       all,
		"resume-run":           fields{"max_failed": "2%"},
		"resume-all-runs":      all,
		"approve-run":          fields{"step": "send", "reason": "looked at the statements of the sample"},
		"approve-all-runs":     all,
		"cancel-run":           fields{"reason": "started with last year's file"},
		"cancel-all-runs":      all,
		"erase":                fields{"key": "CUST-7", "reason": "article 17", "dry_run": true},
		"delete-run":           fields{"reason": "a rehearsal", "dry_run": true},
		"seal-run":             fields{"expect": 1000000},
		"set-run":              fields{"step": "accounts", "chunk": "auto", "in_flight": 16, "rate": 2000, "timeout": "5m"},
		"open-run":             fields{"plan_ref": "year-end", "name": "2026", "seal_within": "6h", "on_overdue": "report"},
		"set-endpoint":         fields{"concurrency": 8, "max_in_flight": 64, "rate": 5000},
		"revoke-sessions":      fields{"user": "ann@example.com"},
		"open-tracker":         fields{"owner": "billing", "key": "2026-11"},
		"add-tracker-items":    fields{"items": 20000, "key": "first"},
		"ack-tracker-items":    fields{"ids": []string{"0198c5f2-7a3e-7c11-9d0e-3b1f6a2c4d58:0:17"}},
		"ack-tracker":          fields{"ranges": []string{"0:100-199", "1-2"}, "code": "REFUSED"},
		"drop-dead-letters":    fields{"ids": []string{"0198f2b1-7c31-7"}},
		"requeue-dead-letters": fields{"endpoint": "accounts"},
		"requeue-operations":   fields{"code": "TIMEOUT"},
		"drop-operations":      fields{"ids": []string{"order-17"}},
		"log-in":               fields{"token": "tr_7Zk…"},
		"set-retention":        fields{"age": "90d", "max_bytes": 50 << 30},
		"set-streams":          fields{"replicas": 3, "work_bytes": 2 << 30},
		"run-retention":        fields{"dry_run": true},
		"create-token":         fields{"name": "nightly", "role": "operator", "expires_in": "720h"},
	}
}

// describeExamples gives bodies examples, and parameters that mean the same everywhere a description.
func describeExamples(doc *huma.OpenAPI) {
	examples := bodyExamples()
	for _, item := range doc.Paths {
		for _, op := range kernel.DescribedOf(item) {
			for _, p := range op.Parameters {
				describeParameter(p)
			}
			if op.RequestBody == nil {
				continue
			}
			for kind, content := range op.RequestBody.Content {
				content.Example = exampleOf(kind, op.OperationID, examples)
			}
		}
	}
}

func exampleOf(kind, operation string, examples map[string]any) any {
	switch kind {
	case "text/csv", "application/octet-stream":
		return exampleCSV
	case kernel.MimeNDJSON:
		return exampleNDJSON
	case "application/yaml":
		return examplePlan
	case runs.MimeParquet:
		return exampleParquet
	case "multipart/form-data":
		return map[string]any{runs.PartRun: map[string]any{"endpoint": "accounts", "name": "2026"},
			runs.PartItems: exampleCSV}
	default:
		return examples[operation]
	}
}

func describeParameter(p *huma.Param) {
	if p.Description == "" {
		p.Description = map[string]string{
			"limit":           "how many at the most",
			"version":         "a version of the plan; they count from 1",
			"id":              "its number in the list",
			"endpoint":        "run this single endpoint instead of a plan",
			"key":             "the column or field that is the item's key; absent: key, then id, then the first column",
			"format":          "of the items or the export; absent: recognised, or ndjson",
			"name":            "a name to find the run by",
			"idempotency_key": "starting again with the same key gives the run that is there",
			"on_duplicate":    "what to do with a key that stands twice",
			"source":          "where the items come from, for people",
		}[p.Name]
	}
	if p.Schema != nil && p.Schema.Description == "" {
		p.Schema.Description = p.Description // generators read it there
	}
	if p.In == "query" && p.Example == nil && p.Schema != nil && len(p.Schema.Enum) > 0 {
		p.Example = slices.Clone(p.Schema.Enum)[0]
	}
}
