package apicore

import (
	"bytes"
	"cmp"
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

// ActHeader has the ID of an act that was only requested. The status is then 202.
const ActHeader = "Tranche-Act"

// FourEyes marks an operation as an act of a kind (identity.ActKinds). If the server requires four eyes for it, the
// operation only saves its request, and another administrator's confirmation carries that out.
func FourEyes(kind string, op huma.Operation) huma.Operation {
	op.Responses = maps.Clone(op.Responses)
	if op.Responses == nil {
		op.Responses = map[string]*huma.Response{}
	}
	op.Responses["202"] = &huma.Response{
		Description: "Nothing was done: another administrator must confirm it (list-acts)."}
	return marked(op, func(r *Route) { r.fourEyes = kind })
}

// Previewed adds to a FourEyes operation what look returns: what a confirmer must know besides the request. look may
// replace a name in the request by an ID. If its result differs at the confirmation, that is refused.
func Previewed[In any](op huma.Operation, look func(ctx context.Context, in *In) (any, error)) huma.Operation {
	return marked(op, func(r *Route) {
		r.preview = func(ctx context.Context, in any) (json.RawMessage, error) {
			given, _ := in.(*In)
			seen, err := look(ctx, given)
			if err != nil {
				return nil, err
			}
			return json.Marshal(seen)
		}
	})
}

// unchanged refuses an act that is confirmed, if what its operation shows of what it changes is no longer what it was.
func unchanged(ctx context.Context, op *huma.Operation, in any) error {
	act, look := identity.ActOf(ctx), RouteOf(op).preview
	if act == nil || look == nil {
		return nil
	}
	seen, err := look(ctx, in)
	if err == nil && !bytes.Equal(seen, act.Preview) {
		err = workqueue.Conflict("act %s: its subject was changed since, and is %s; reject it, and request it again",
			act.ID, seen)
	}
	return err
}

type requestKey struct{}

// Eyes returns the names that count as the same person as the caller (identity.Store.Eyes); in a confirmed act both.
func (s *Core) Eyes(ctx context.Context, name string) ([]string, error) {
	if both := identity.ActEyes(ctx); both != nil {
		return both, nil
	}
	who, _ := access.From(ctx)
	return identity.New(s.Store).Eyes(ctx, name, who.Token)
}

// asksFirst reports whether an operation must be confirmed: not a dry run, and not what a confirmation carries out.
func asksFirst(ctx context.Context, s *Core, op *huma.Operation, in any) bool {
	kind := RouteOf(op).fourEyes
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

// unconfirmedError answers a request that another administrator must confirm.
type unconfirmedError struct{ identity.Act }

func (*unconfirmedError) Error() string { return "another administrator must confirm it" }

func (*unconfirmedError) GetStatus() int { return http.StatusAccepted }

// ask saves the request of an operation, after a dry run if it has one: what would be refused is refused now.
func ask(ctx context.Context, s *Core, op *huma.Operation, in any, handle func() (any, error)) error {
	r, _ := ctx.Value(requestKey{}).(*http.Request)
	who, _ := access.From(ctx)
	if err := mayAsk(ctx, r, &who); err != nil {
		return s.failure(ctx, err)
	}
	route := RouteOf(op)
	act := identity.Act{Kind: route.fourEyes, What: op.Summary, Method: op.Method, Path: r.URL.EscapedPath(),
		AskedBy: r.Header.Get(ActorHeader)}
	if of, ok := in.(interface{ run() workqueue.RunID }); ok { // last, or a name, may be another run later
		act.Path = Prefix + strings.Replace(op.Path, "{run}", of.run().String(), 1)
	}
	var err error
	if route.preview != nil {
		act.Preview, err = route.preview(ctx, in)
	}
	if of, ok := in.(interface{ Pinned() string }); ok {
		act.Path = Prefix + strings.Replace(op.Path, "{id}", of.Pinned(), 1)
	}
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
	by := identity.Asker{Token: who.Token, Session: who.SessionHash()}
	if err == nil {
		by.Eyes, err = s.Eyes(ctx, act.AskedBy)
	}
	if err == nil {
		act, err = identity.New(s.Store).AskAct(ctx, act, by)
	}
	if err != nil {
		return s.failure(ctx, err)
	}
	return huma.ErrorWithHeaders(&unconfirmedError{act}, http.Header{ActHeader: {act.ID}})
}

// mayAsk refuses requests that a confirmation would not carry out in the same way: it has no namespace and no query,
// and the requester's credential is checked again in the database.
func mayAsk(ctx context.Context, r *http.Request, who *access.Principal) error {
	switch {
	case !who.Role.Allows(access.Admin):
		return Denied(http.StatusForbidden, "another administrator must confirm this, and only an admin of the whole "+
			"installation can request it; "+who.Name+" is admin in a namespace")
	case who.Token == nil && !who.Session:
		return Denied(http.StatusForbidden, "another administrator must confirm this, and it cannot be requested with a "+
			"client certificate; use a token, or log in")
	case workqueue.Namespaces(ctx) != nil || r.URL.RawQuery != "":
		return BadInput("another administrator must confirm this, for the whole installation; leave out the namespace " +
			"(--namespace, " + NamespaceHeader + ") and any query")
	}
	return nil
}

// Confirm carries out an act in the requester's name, and returns its answer. It is done once: what it changes settles
// it. If it is refused, it stays pending; an erasure that was done in part stays running.
func Confirm(ctx context.Context, s *Core, act *identity.Act, by string, eyes []string) (json.RawMessage, error) {
	if err := act.Pending(); err != nil {
		return nil, err
	}
	if act.Yours {
		return nil, Denied(http.StatusForbidden, by+" is not independent of the requester "+act.AskedBy+": another "+
			"administrator, whose token neither of them made, must confirm it")
	}
	confirming, done := identity.Confirming(ctx, act, by, eyes)
	r, err := http.NewRequestWithContext(confirming, act.Method, act.Path, bytes.NewReader(act.Input))
	if err != nil {
		return nil, err
	}
	r.Header.Set(ActorHeader, act.AskedBy)
	r.Header.Set("Content-Type", "application/json")
	if route := s.mux.route(r); route.fourEyes != act.Kind || route.Role != access.Admin {
		return nil, workqueue.Conflict("act %s: this version has no such operation", act.ID)
	}
	store := identity.New(s.Store)
	if err := store.BeginAct(ctx, act); err != nil {
		return nil, err
	}
	answer := &recorder{header: http.Header{}}
	s.mux.ServeHTTP(answer, r)
	if answer.code < http.StatusMultipleChoices {
		if done.Later || !done.Changed {
			err = store.SettleAct(ctx, done)
		}
		return answer.body.Bytes(), err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTimeout)
	defer cancel()
	if !done.Changed {
		err = store.HaltAct(ctx, act)
	}
	var now identity.Act
	if err == nil {
		now, err = store.Act(ctx, act.ID, nil)
	}
	if err == nil {
		err = now.Pending() // not if another confirmation was faster
	}
	if err != nil {
		return nil, err
	}
	var why huma.ErrorModel
	_ = json.Unmarshal(answer.body.Bytes(), &why) // without a problem, the status says it
	return nil, Denied(answer.code, "it stays "+now.State+": "+why.Detail)
}

type recorder struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (k *recorder) Header() http.Header { return k.header }

func (k *recorder) WriteHeader(status int) {
	k.code = cmp.Or(k.code, status)
}

func (k *recorder) Write(p []byte) (int, error) {
	k.WriteHeader(http.StatusOK)
	return k.body.Write(p)
}
