package api

import (
	"context"
	"encoding/json"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/workqueue/identity"
)

const seeActs = "tranche act list"

// ActList lists administrators' acts that another one confirms.
type ActList struct {
	FourEyes []string       `json:"four_eyes" nullable:"false" doc:"kinds of acts that need it here (serve --four-eyes)"`
	Acts     []identity.Act `json:"acts" nullable:"false" doc:"those to be confirmed first, then the newest; settled ones for 30 days"`
}

// ConfirmedAct is an act that was carried out.
type ConfirmedAct struct {
	Act    identity.Act    `json:"act"`
	Answer json.RawMessage `json:"answer" doc:"of its operation"`
}

type actRoutes struct {
	*apicore.Core
	fourEyes []string
}

func (s *actRoutes) Register(api huma.API) {
	list := apicore.Get("list-acts", "/acts", "List administrators' acts that another one confirms")
	apicore.Register(s.Core, api, apicore.ByAdmin(list), s.listActs)
	confirm := apicore.Post("confirm-act", "/acts/{id}/confirm", "Confirm and carry out an act",
		"Requester and confirmer must be two people. Neither may have made the other's token, and no one person both. "+
			"A refused act stays pending. An interrupted erasure stays running: confirm it again, or reject it "+
			"once its requester's token or login has ended.")
	apicore.Register(s.Core, api, apicore.Unstored(apicore.ByAdmin(confirm)), s.confirmAct)
	reject := apicore.Post("reject-act", "/acts/{id}/reject", "Reject an act, or withdraw it", "")
	apicore.Register(s.Core, api, apicore.ByAdmin(reject), s.rejectAct)
}

func (s *actRoutes) listActs(ctx context.Context, in *struct{ apicore.Actor }) (ActList, error) {
	eyes, err := s.Eyes(ctx, in.Name)
	if err != nil {
		return ActList{}, err
	}
	all, err := identity.New(s.Store).Acts(ctx, eyes)
	return ActList{FourEyes: append([]string{}, s.fourEyes...), Acts: all}, err
}

type actInput struct {
	apicore.Changer
	ID string `path:"id" doc:"an id, or the beginning of one (4 digits or more)"`
}

func (s *actRoutes) confirmAct(ctx context.Context, in *actInput) (out ConfirmedAct, err error) {
	store := identity.New(s.Store)
	eyes, err := s.Eyes(ctx, in.Name)
	if err != nil {
		return out, err
	}
	act, err := store.Act(ctx, in.ID, eyes)
	if err != nil {
		return out, apicore.Seen(err, seeActs)
	}
	if out.Answer, err = apicore.Confirm(ctx, s.Core, &act, in.Name, eyes); err != nil {
		return out, err
	}
	out.Act, err = store.Act(ctx, act.ID, eyes)
	return out, err
}

func (s *actRoutes) rejectAct(ctx context.Context, in *actInput) (identity.Act, error) {
	act, err := identity.New(s.Store).Act(ctx, in.ID, nil)
	if err != nil {
		return act, apicore.Seen(err, seeActs)
	}
	return identity.New(s.Store).RejectAct(ctx, &act, in.Name)
}
