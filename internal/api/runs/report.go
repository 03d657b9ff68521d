package runs

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/export"
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
	compare := apicore.ScansRun(apicore.Get("compare-runs", "/runs/{run}/comparison", "Compare two runs, key by key"))
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

type resultInput struct {
	apicore.RunPath
	Key     string `path:"key" doc:"the item's key"`
	Step    string `query:"step" maxLength:"64" doc:"whose result; absent: of the only step that no other needs"`
	Ordinal int32  `query:"ordinal" minimum:"-1" maximum:"2147483647" default:"-1" doc:"of several items with the key"`
}

const resultDescription = `The bytes that the service returned, always as a download. The content type is kept if
browsers cannot execute it; otherwise it is application/octet-stream, and Tranche-Content-Type has the service's. The
ETag is the SHA-256; byte ranges are supported.`

func (s *Routes) registerResult(api huma.API) {
	op := apicore.ReadsItems(apicore.Held(apicore.Get("get-result", "/runs/{run}/items/{key}/result",
		"The result of an item, unchanged")))
	op.Description = resultDescription
	op.Responses = apicore.Answers("The result.", mimeBinary, &huma.Schema{Type: huma.TypeString, Format: "binary"})
	apicore.RegisterAnswer(s.Core, api, op, func(ctx context.Context, in *resultInput) (*huma.StreamResponse, error) {
		ctx, cancel := s.Looking(ctx)
		defer cancel()
		found, err := s.result(ctx, in)
		if err != nil {
			return nil, err
		}
		return apicore.Raw(func(w http.ResponseWriter, r *http.Request) {
			if !found.Large.Valid {
				sendResult(w, r, in.Key, &found, bytes.NewReader(found.Body))
				return
			}
			body, err := export.New(s.Store).OpenResult(r.Context(), found.Large.UUID)
			if err != nil {
				s.Log.Warn("open a large result", zap.Error(err))
				http.Error(w, "the result cannot be read", http.StatusInternalServerError)
				return
			}
			sendResult(w, r, in.Key, &found, body)
		}), nil
	})
}

func (s *Routes) result(ctx context.Context, in *resultInput) (export.Result, error) {
	req := export.ResultRequest{Run: in.ID, Step: in.Step, Key: in.Key}
	if in.Ordinal >= 0 {
		req.Ordinal = new(workqueue.Ordinal(in.Ordinal))
	}
	found, err := export.New(s.Store).Result(ctx, req)
	if choice, ok := errors.AsType[*workqueue.StepChoiceError](err); ok {
		return found, apicore.BadInput("step: " + choice.Error())
	}
	if twins, ok := errors.AsType[*export.AmbiguousKeyError](err); ok {
		return found, apicore.BadInput("ordinal: " + twins.Error())
	}
	return found, apicore.Seen(err, "tranche run item "+in.ID.String()+" KEY")
}

// inertTypes are content types that execute nothing, with their file extensions.
func inertTypes() map[string]string {
	return map[string]string{
		"application/json": ".json", "text/plain": ".txt", "text/csv": ".csv", "application/x-ndjson": ".ndjson",
		"application/pdf": ".pdf", "image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif",
		"image/webp": ".webp", "application/zip": ".zip", "application/vnd.apache.parquet": ".parquet",
	}
}

// sendResult sends bytes of unknown origin. Browsers are told to save them; if shown anyway, nothing in them can run
// or reach anything.
func sendResult(w http.ResponseWriter, r *http.Request, key string, found *export.Result, body io.ReadSeeker) {
	kind, params, err := mime.ParseMediaType(found.ContentType)
	if found.ContentType == "" {
		kind, err = "application/json", nil
	}
	extension, inert := inertTypes()[kind]
	if err != nil || !inert {
		kind, extension = mimeBinary, ".bin"
	}
	if strings.HasPrefix(kind, "text/") {
		charset := strings.ToLower(params["charset"])
		if charset == "" || strings.Contains(charset, "utf-7") {
			charset = "utf-8"
		}
		kind = mime.FormatMediaType(kind, map[string]string{"charset": charset})
	}
	h := w.Header()
	h.Set("Content-Type", kind)
	if kind == mimeBinary && found.ContentType != "" {
		printable := slices.DeleteFunc([]byte(apicore.Echo(found.ContentType)),
			func(c byte) bool { return c < ' ' || c > '~' })
		h.Set("Tranche-Content-Type", string(printable))
	}
	name := map[string]string{"filename": fileName(key) + extension}
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", name))
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("ETag", `"`+hex.EncodeToString(found.SHA256[:])+`"`)
	http.ServeContent(w, r, "", time.Time{}, body)
}

func fileName(key string) string {
	const most = 80
	name := strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
			return c
		}
		return '_'
	}, key)
	return name[:min(len(name), most)]
}

type groupsInput struct {
	apicore.RunPath
	By string `query:"by" maxLength:"200" doc:"a top-level field of the payloads; absent: only list the fields"`

	Lanes bool `query:"lanes" doc:"by lane of a run in order instead: the number of a partition, or of a value's lane"`
}

type groupsMapInput struct {
	apicore.RunPath
	By     string `query:"by" required:"true" minLength:"1" maxLength:"200" doc:"a top-level field of the payloads"`
	From   int32  `query:"from" minimum:"0" maximum:"262143" doc:"the first block: ordinal 8192·from"`
	Blocks int    `query:"blocks" minimum:"1" maximum:"128" default:"128" doc:"how many blocks"`
}

func (s *Routes) registerGroups(api huma.API) {
	op := apicore.ReadsItems(apicore.ReadsMany(apicore.Get("get-groups", "/runs/{run}/groups",
		"Items by a payload field, or by lane")))
	op.Description = "How many items have each value, and their states over all steps: the 50 most frequent values, " +
		"and the rest together. The first query of a field reads the payloads of all items; later ones do not. Of runs " +
		"of more than 16,777,216 items, and by fields or lanes of more than 65,535 different values, there are no groups."
	apicore.Register(s.Core, api, op, s.getGroups)
	op = apicore.ReadsMany(apicore.Get("get-groups-map", "/runs/{run}/groups/map", "The group of each item, as bytes"))
	op.Description = "One byte for each item, in the order of their ordinals, as of /runs/{run}/planes: the place of " +
		"its value in the groups of /runs/{run}/groups, from 0, and 50 for the rest."
	op.Responses = planesResponses()
	apicore.RegisterAnswer(s.Core, api, op, s.getGroupsMap)
}

func (s *Routes) getGroups(ctx context.Context, in *groupsInput) (*inspect.PayloadGroups, error) {
	if err := apicore.CheckText("by", in.By, inspect.MaxFieldName); err != nil {
		return nil, err
	}
	switch {
	case in.By != "" && in.Lanes:
		return nil, apicore.BadInput("lanes: it does not go with by; give one of them")
	case in.By == "" && !in.Lanes:
		return inspect.New(s.Store).PayloadFields(ctx, in.ID)
	}
	return inspect.New(s.Store).GroupsBy(ctx, in.ID, in.By)
}

func (s *Routes) getGroupsMap(ctx context.Context, in *groupsMapInput) (*huma.StreamResponse, error) {
	look, cancel := s.Looking(ctx)
	defer cancel()
	if err := apicore.CheckText("by", in.By, inspect.MaxFieldName); err != nil {
		return nil, err
	}
	planes, err := inspect.New(s.Store).GroupPlane(look, in.ID, in.By, workqueue.Block(in.From), in.Blocks)
	if err != nil {
		return nil, err
	}
	return planesAnswer(planes), nil
}
