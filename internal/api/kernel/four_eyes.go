package kernel

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// ActHeader has the ID of an act that was only asked for. The status is then 202.
const ActHeader = "Tranche-Act"

// FourEyes marks an operation as an act of a kind (identity.ActKinds). If the server requires four eyes for it, the
// operation only saves its request, and another administrator's confirmation carries that out.
func FourEyes(kind string, op huma.Operation) huma.Operation {
	op.Responses = maps.Clone(op.Responses)
	if op.Responses == nil {
		op.Responses = map[string]*huma.Response{}
	}
	op.Responses["202"] = &huma.Response{Description: "Nothing was done: another administrator must confirm it (list-acts)."}
	return noted(op, metaFourEyes, kind)
}

type requestKey struct{}

// Eyes returns the names that count as the same person as the caller (identity.Store.Eyes); in a confirmed act both.
func (s *Kernel) Eyes(ctx context.Context, name string) ([]string, error) {
	if both := identity.ActEyes(ctx); both != nil {
		return both, nil
	}
	who, _ := access.From(ctx)
	return identity.New(s.Store).Eyes(ctx, name, who.Token)
}

// asksFirst reports whether an operation must be confirmed: not a dry run, and not what a confirmation carries out.
func asksFirst(ctx context.Context, s *Kernel, op *huma.Operation, in any) bool {
	kind, _ := op.Metadata[metaFourEyes].(string)
	if kind == "" || !slices.Contains(s.config.FourEyes, kind) || identity.ActEyes(ctx) != nil {
		return false
	}
	dry, ok := dryRun(in)
	return !ok || !dry.Bool()
}

// dryRun returns the field DryRun of an input's body.
func dryRun(in any) (field reflect.Value, ok bool) {
	body := reflect.ValueOf(in).Elem().FieldByName("Body")
	if !body.IsValid() {
		return field, false
	}
	if body.Kind() == reflect.Pointer {
		if body.IsNil() {
			body.Set(reflect.New(body.Type().Elem()))
		}
		body = body.Elem()
	}
	field = body.FieldByName("DryRun")
	return field, field.IsValid()
}

// askedFor answers a request that another administrator must confirm.
type askedFor struct{ identity.Act }

func (*askedFor) Error() string { return "another administrator must confirm it" }

func (*askedFor) GetStatus() int { return http.StatusAccepted }

// ask saves the request of an operation, after a dry run if it has one: what would be refused is refused now.
func ask(ctx context.Context, s *Kernel, op *huma.Operation, in any, handle func() (any, error)) error {
	r, _ := ctx.Value(requestKey{}).(*http.Request)
	kind, _ := op.Metadata[metaFourEyes].(string)
	act := identity.Act{Kind: kind, What: op.Summary, Method: op.Method, Path: r.URL.RequestURI(),
		AskedBy: r.Header.Get(ActorHeader)}
	if of, ok := in.(interface{ run() workqueue.RunID }); ok { // last, or a name, may be another run later
		act.Path = Prefix + strings.Replace(op.Path, "{run}", of.run().String(), 1)
	}
	var err error
	if dry, ok := dryRun(in); ok {
		dry.SetBool(true)
		var would any
		if would, err = handle(); err == nil {
			act.Preview, err = json.Marshal(reflect.ValueOf(would).Elem().FieldByName("Body").Interface())
		}
		dry.SetBool(false)
	}
	if body := reflect.ValueOf(in).Elem().FieldByName("Body"); err == nil && body.IsValid() {
		act.Input, err = json.Marshal(body.Interface())
	}
	var eyes []string
	if err == nil {
		eyes, err = s.Eyes(ctx, act.AskedBy)
	}
	if err == nil {
		act, err = identity.New(s.Store).AskAct(ctx, act, eyes)
	}
	if err != nil {
		return s.failure(ctx, err)
	}
	return huma.ErrorWithHeaders(&askedFor{act}, http.Header{ActHeader: {act.ID}})
}

// Confirm carries out an act in the name of who asked, and returns its answer. It is done once: what it changes settles
// it. If it is refused, it stays pending.
func (s *Kernel) Confirm(ctx context.Context, act *identity.Act, by string, eyes []string) (json.RawMessage, error) {
	if act.Yours {
		return nil, Denied(http.StatusForbidden, by+" is not independent of "+act.AskedBy+", who asked for it: another "+
			"administrator, whose token neither of them made, must confirm it")
	}
	if err := act.Pending(); err != nil {
		return nil, err
	}
	later := act.Kind == "erase" // in several transactions; repeating it is harmless
	r, err := http.NewRequestWithContext(identity.Confirming(ctx, act, by, eyes, later), act.Method, act.Path,
		bytes.NewReader(act.Input))
	if err != nil {
		return nil, err
	}
	r.Header.Set(ActorHeader, act.AskedBy)
	r.Header.Set("Content-Type", "application/json")
	if route := s.mux.route(r); route.fourEyes != act.Kind || route.Role != access.Admin {
		return nil, &workqueue.ActError{Act: act.ID, Detail: "this version has no such operation"}
	}
	answer := &keptWriter{to: &discarded{http.Header{}}}
	s.mux.ServeHTTP(answer, r)
	if answer.status() >= http.StatusMultipleChoices {
		var why huma.ErrorModel
		_ = json.Unmarshal(answer.body.Bytes(), &why) // without a problem, the status says it
		return nil, Denied(answer.status(), "it stays pending: "+why.Detail)
	}
	return answer.body.Bytes(), identity.New(s.Store).SettleAct(ctx, act, by)
}

// discarded takes what a keptWriter does not keep.
type discarded struct{ header http.Header }

func (d *discarded) Header() http.Header         { return d.header }
func (d *discarded) Write(p []byte) (int, error) { return len(p), nil }
func (d *discarded) WriteHeader(int)             {}
