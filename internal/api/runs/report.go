package runs

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	reportstore "github.com/tranchehq/tranche/workqueue/report"
)

// reportTimeout limits a report: digests and comparisons read every item.
const reportTimeout = 10 * time.Minute

// ReportDocument is a run's report with the requested digests and comparison.
type ReportDocument struct {
	reportstore.RunReport

	Digests *reportstore.Digests `json:"digests,omitempty" doc:"of the run's items and results"`
	Against *Against             `json:"against,omitempty" doc:"the comparison with an earlier run"`
}

// Against is a comparison with an earlier run.
type Against struct {
	reportstore.Comparison

	Digests *reportstore.Digests `json:"digests,omitempty" doc:"of the earlier run"`
}

func (s exports) registerReport(api huma.API) {
	report := apicore.ScansRun(apicore.Get("report-run", "/runs/{run}/report",
		"Counts, times, requests and digests of a run"))
	report.Description = "Its counts add up to the number of items. Digests read every item and result; they are " +
		"defined in docs/reports.md. With against, the run is compared with an earlier one, key by key."
	apicore.RegisterWithin(s.Core, api, report, reportTimeout, s.reportRun)
	compare := apicore.ScansRun(apicore.Get("compare-runs", "/runs/{run}/comparison",
		"Compare two runs, key by key"))
	compare.Description = "A stream in the order of the keys, in constant memory. One that does not end properly is not " +
		"whole."
	compare.Responses = apicore.Answers("A line of JSON for each key.", apicore.MimeNDJSON,
		apicore.SchemaOf[reportstore.Difference](api))
	apicore.RegisterAnswer(s.Core, api, compare, s.compareRuns)
}

type reportInput struct {
	apicore.RunPath
	Against string `query:"against" doc:"an earlier run to compare with: ID, part of an ID, or name"`
	Before  string `query:"before" maxLength:"64" doc:"with against: compare what waits before this step"`
	Digests bool   `query:"digests" default:"true" doc:"false omits the digests, which read every item"`
}

func (s exports) reportRun(ctx context.Context, in *reportInput) (out ReportDocument, err error) {
	against, err := s.FindRun(ctx, in.Against)
	if err != nil {
		return ReportDocument{}, err
	}
	if out.RunReport, err = reportstore.New(s.Store).Report(ctx, in.ID); err != nil {
		return ReportDocument{}, err
	}
	if in.Digests {
		if out.Digests, err = s.digests(ctx, in.ID); err != nil {
			return ReportDocument{}, err
		}
	}
	if in.Against == "" {
		return out, nil
	}
	out.Against, err = s.against(ctx, in.ID, against, in)
	return out, err
}

func (s exports) digests(ctx context.Context, id workqueue.RunID) (*reportstore.Digests, error) {
	digests, err := reportstore.New(s.Store).Digests(ctx, id)
	return &digests, err
}

func (s exports) against(ctx context.Context, here, there workqueue.RunID, in *reportInput) (*Against, error) {
	found, err := reportstore.New(s.Store).CompareBefore(ctx, here, there, in.Before, nil)
	if choice, ok := errors.AsType[*workqueue.StepChoiceError](err); ok {
		return nil, apicore.BadInput("before: " + choice.Error())
	}
	if err != nil {
		return nil, err
	}
	out := &Against{Comparison: found}
	if in.Digests {
		out.Digests, err = s.digests(ctx, there)
	}
	return out, err
}

type compareInput struct {
	apicore.RunPath
	Against string   `query:"against" required:"true" doc:"an earlier run: ID, part of an ID, or name"`
	Change  []string `query:"change,explode" enum:"newly_failing,newly_fixed,changed,still_failing,unfinished,only_here,only_there,not_compared,unchanged" doc:"only keys with this change; repeatable; absent: all"`
}

func (s exports) compareRuns(ctx context.Context, in *compareInput) (*huma.StreamResponse, error) {
	there, err := inspect.New(s.Store).Resolve(ctx, in.Against)
	if err != nil {
		return nil, err
	}
	return apicore.Raw(func(w http.ResponseWriter, r *http.Request) {
		s.streamComparison(w, r, in.ID, there, in.Change)
	}), nil
}

// streamComparison streams the answer. After the first bytes, only breaking the connection can report a failure.
func (s exports) streamComparison(
	w http.ResponseWriter, r *http.Request, here, there workqueue.RunID, wanted []string,
) {
	w.Header().Set("Content-Type", apicore.MimeNDJSON)
	buffer := bufio.NewWriterSize(&flushing{w: w, control: http.NewResponseController(w)}, exportBuffer)
	encoder := json.NewEncoder(buffer)
	encoder.SetEscapeHTML(false)
	_, err := reportstore.New(s.Store).Compare(r.Context(), here, there, func(d *reportstore.Difference) error {
		if len(wanted) > 0 && !slices.Contains(wanted, string(d.Change)) {
			return nil
		}
		return encoder.Encode(d)
	})
	s.complete(r, buffer, err)
}
