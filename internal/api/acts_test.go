package api_test

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// PROOF: who may do what, 23.
// One administrator alone does nothing that needs four eyes, with whatever tokens they make; a second one does it once.
func TestActsNeedFourEyes(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	run := b.Start("name=it").Run
	b.Finish(run)
	b.LongAgo(run)
	b.LockedWith(api.Config{FourEyes: []string{"erase", "retention", "delete"}}, access.Config{})
	by := func(secret string) []string { return []string{"Authorization", "Bearer " + secret} }
	made := func(secret, name string) string {
		var out api.CreatedToken
		b.JSON(http.MethodPost, "/tokens", `{"name":"`+name+`","role":"admin"}`, http.StatusOK, &out, by(secret)...)
		return out.Secret
	}
	ann, bob := b.Token("ann", access.Admin, 0).Secret, b.Token("bob", access.Admin, 0).Secret
	twin := made(made(ann, "carl"), "carla")
	ask := func(secret, method, path, body string) (act identity.Act) {
		b.JSON(method, path, body, http.StatusAccepted, &act, by(secret)...)
		return act
	}
	confirm := func(id string, status int, says string, header ...string) {
		t.Helper()
		code, _, answer := b.Asked("/acts/"+id+"/confirm", "", header...)
		if code != status || !strings.Contains(string(answer), says) {
			t.Errorf("confirming is answered %d %s; want %d and %q", code, answer, status, says)
		}
	}
	const erase = `{"key":"2"}`
	runPath := "/runs/it/delete"
	secret := access.NewSecret()
	testenv.Must(identity.New(b.Store).CreateToken(t.Context(), identity.NewToken{Name: "eve", Role: "viewer",
		Hash: access.HashOf(secret), Grants: map[string]string{"default": "admin"}}, "it"))(t)
	b.JSON(http.MethodPost, runPath, "", http.StatusForbidden, nil, by(secret)...)
	b.JSON(http.MethodPost, runPath, `{"dry_run":true}`, http.StatusOK, nil, by(ann)...)
	acts := []identity.Act{ask(ann, http.MethodPost, "/erase", erase), ask(twin, http.MethodPost, runPath, ""),
		ask(ann, http.MethodPut, "/retention/events", `{"age":"9d"}`)}
	browser := append(b.LogIn(ann).Headers(), "Sec-Fetch-Site", "same-origin")
	var rotated api.CreatedToken
	b.JSON(http.MethodPost, "/tokens/bob/rotate", `{"overlap":"48h"}`, http.StatusOK, &rotated, by(ann)...) // ann is bob
	for _, act := range acts {
		for _, header := range [][]string{by(ann), by(twin), browser, by(rotated.Secret)} {
			confirm(act.ID, http.StatusForbidden, "is not independent of", header...)
		}
	}
	if !strings.Contains(string(acts[0].Preview), `"dry_run":true`) || !strings.Contains(acts[1].Path, run.String()) {
		t.Errorf("the acts are %+v", acts)
	}
	testenv.Same(t, b.Number(`SELECT count(*) FROM deleted_run`)+b.Number(
		`SELECT count(*) FROM audit_log WHERE action IN ('erase', 'retention_set')`), 0, "one person alone did")
	b.Refused(http.StatusUnprocessableEntity, "age", http.MethodPut, api.Prefix+"/retention/events",
		strings.NewReader(`{"age":"soon"}`), append(by(ann), "Content-Type", "application/json")...)
	again := ask(ann, http.MethodPut, "/retention/events", `{"age":"8d"}`)
	for _, act := range acts {
		var codes [2]int
		var says [2]string
		var both sync.WaitGroup
		for i := range codes {
			both.Go(func() { codes[i], says[i], _ = b.Asked("/acts/"+act.ID+"/confirm", "", by(bob)...) })
		}
		both.Wait()
		if strings.Contains(says[0]+says[1], "stays") {
			t.Errorf("the slower confirmation is answered %q", says)
		}
		if slices.Sort(codes[:]); act.Kind != "erase" && (codes[0] != 200 || codes[1] < 400) { // erasing may be repeated
			t.Errorf("%s, confirmed twice, is answered %v", act.What, codes)
		}
		confirm(act.ID, http.StatusConflict, "it is done already, by bob", by(ann)...)
	}
	confirm(again.ID, http.StatusConflict, "changed since, and is", by(bob)...)
	testenv.Same(t, b.Number(`SELECT count(*) FROM deleted_run`), 1, "runs deleted")
	testenv.Same(t, b.Number(`SELECT count(*) FROM audit_log WHERE action = 'retention_set' AND actor = 'ann'
		AND origin->>'confirmed_by' = 'bob' AND origin->>'act' = $1`, acts[2].ID), 1, "rows name both")
	testenv.Same(t, b.Number(`SELECT count(*) FROM admin_act WHERE input IS NOT NULL OR preview IS NOT NULL`), 1,
		"keys stay, except the pending act's")
	testenv.Same(t, b.Number(`SELECT count(*) FROM audit_log WHERE action = 'act_ask'
		AND detail - '{what,kind,expires_at}'::text[] <> '{}'`), 0, "digests of keys stay")

	gone, late, dans := ask(ann, http.MethodPost, "/erase", erase), ask(ann, http.MethodPost, "/erase", erase),
		ask(b.Token("dan", access.Admin, 0).Secret, http.MethodPost, "/erase", erase)
	b.JSON(http.MethodPost, "/acts/"+gone.ID+"/reject", "", http.StatusOK, nil, by(ann)...)
	confirm(gone.ID, http.StatusConflict, "it is rejected already, by ann", by(bob)...)
	b.JSON(http.MethodPost, "/tokens/dan/revoke", "", http.StatusOK, nil, by(bob)...)
	confirm(dans.ID, http.StatusConflict, "which was revoked or has expired", by(bob)...)
	b.JSON(http.MethodPost, "/runs?endpoint=echo&name=again", apitest.Three, http.StatusCreated, nil, by(ann)...)
	confirm(late.ID, http.StatusConflict, "it stays pending: nothing was erased", by(bob)...)
	b.JSON(http.MethodPost, "/runs/again/cancel", "", http.StatusOK, nil, by(ann)...)
	b.Exec(`UPDATE admin_act SET state = 'running' WHERE id = $1`, late.ID) // as after a crash
	b.JSON(http.MethodPost, "/acts/"+late.ID+"/reject", "", http.StatusConflict, nil, by(ann)...)
	testenv.Advance(t, b.Pool, identity.ActLife)
	confirm(again.ID, http.StatusConflict, "it has expired", by(bob)...)
	confirm(late.ID, http.StatusOK, `"state":"done"`, by(bob)...)
	b.Exec(`UPDATE admin_act SET state = 'running' WHERE id = $1`, dans.ID)
	b.JSON(http.MethodPost, "/acts/"+dans.ID+"/reject", "", http.StatusOK, nil, by(bob)...)
}

// PROOF: who may do what, 23.
// A token that two administrators make is not independent of either. What is refused at the confirmation stays pending,
// and a change that was not committed with its act is undone.
func TestTokensNeedFourEyes(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t).LockedWith(api.Config{FourEyes: identity.ActKinds()}, access.Config{})
	by := func(name string) []string {
		return []string{"Authorization", "Bearer " + b.Token(name, access.Admin, 0).Secret}
	}
	ann, bob := by("ann"), by("bob")
	once := append(slices.Clone(ann), apicore.IdempotencyHeader, "k", "Content-Type", "application/json")
	for range 2 {
		answer := b.Send(http.MethodPost, api.Prefix+"/erase", `{"key":"A-1"}`, once...)
		testenv.Same(t, answer.Header.Get(apicore.ActHeader) != "", true, "the answer, and its replay, name the act")
	}
	b.JSON(http.MethodDelete, "/plans/none", "", http.StatusUnprocessableEntity, nil,
		append(slices.Clone(ann), apicore.NamespaceHeader, "default")...)
	b.JSON(http.MethodDelete, "/plans/none?namespace=default", "", http.StatusUnprocessableEntity, nil, ann...)
	var act, taken, plan identity.Act
	b.JSON(http.MethodPost, "/tokens", `{"name":"carl","role":"admin"}`, http.StatusAccepted, &act, ann...)
	b.JSON(http.MethodPost, "/tokens", `{"name":"carl","role":"viewer"}`, http.StatusAccepted, &taken, ann...)
	b.JSON(http.MethodDelete, "/plans/none", "", http.StatusAccepted, &plan, ann...)
	var done struct {
		Act    identity.Act
		Answer api.CreatedToken
	}
	b.JSON(http.MethodPost, "/acts/"+act.ID+"/confirm", "", http.StatusOK, &done, bob...)
	carl := []string{"Authorization", "Bearer " + done.Answer.Secret}
	b.JSON(http.MethodPost, "/acts/"+plan.ID+"/confirm", "", http.StatusForbidden, nil, carl...)
	b.JSON(http.MethodPost, "/acts/"+plan.ID+"/confirm", "", http.StatusNotFound, nil, bob...)
	b.JSON(http.MethodPost, "/acts/"+taken.ID+"/confirm", "", http.StatusConflict, nil, bob...)
	list := api.ActList{}
	b.JSON(http.MethodGet, "/acts", "", http.StatusOK, &list, bob...)
	if a := list.Acts; len(a) != 4 || a[2].State != "pending" || a[3].SettledBy != "bob" {
		t.Errorf("the acts are %+v", a)
	}
	ctx, _ := identity.Confirming(t.Context(), &done.Act, "bob", nil) // as if another request had confirmed it since
	_, err := identity.New(b.Store).CreateToken(ctx, identity.NewToken{Name: "dora", Role: "admin"}, "ann")
	_, settled := errors.AsType[*workqueue.ConflictError](err)
	if !settled || b.Number(`SELECT count(*) FROM api_token WHERE name = 'dora'`) > 0 {
		t.Errorf("an act is done twice: %v", err)
	}
	b.JSON(http.MethodPost, "/tokens/carl/rotate", `{}`, http.StatusAccepted, &act, ann...)
	if !strings.Contains(act.Path, done.Answer.ID.String()) || !strings.Contains(string(act.Preview), `"role":"admin"`) {
		t.Errorf("the rotation is %+v", act)
	}
	b.Exec(`INSERT INTO admin_act (id, kind, what, method, path, asked_by, eyes, expires_at) SELECT gen_random_uuid(),
		'erase', '', '', '', 'ann', '{ann}', tranche_now() + interval '1h' FROM generate_series(1, 100)`)
	b.JSON(http.MethodDelete, "/plans/none", "", http.StatusConflict, nil, ann...)
}
