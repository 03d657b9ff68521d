package api

import (
	"context"
	"encoding/json"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api/kernel"
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
	*kernel.Kernel
	fourEyes []string
}

func (s *actRoutes) Register(api huma.API) {
	list := kernel.Get("list-acts", "/acts", "List administrators' acts that another one confirms")
	kernel.Register(s.Kernel, api, kernel.ByAdmin(list), s.listActs)
	confirm := kernel.Post("confirm-act", "/acts/{id}/confirm", "Confirm and carry out an act",
		"Refused for who asked for it, and for who made the token of one of the two. If the act is refused, it stays "+
			"pending; an interrupted erasure stays running, and is confirmed again.")
	kernel.Register(s.Kernel, api, kernel.Unstored(kernel.ByAdmin(confirm)), s.confirmAct)
	reject := kernel.Post("reject-act", "/acts/{id}/reject", "Reject an act, or withdraw it", "")
	kernel.Register(s.Kernel, api, kernel.ByAdmin(reject), s.rejectAct)
}

func (s *actRoutes) listActs(ctx context.Context, in *struct{ kernel.Actor }) (ActList, error) {
	eyes, err := s.Eyes(ctx, in.Name)
	if err != nil {
		return ActList{}, err
	}
	all, err := identity.New(s.Store).Acts(ctx, eyes)
	return ActList{FourEyes: append([]string{}, s.fourEyes...), Acts: all}, err
}

type actInput struct {
	kernel.Changer
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
		return out, kernel.Seen(err, seeActs)
	}
	if out.Answer, err = kernel.Confirm(ctx, s.Kernel, &act, in.Name, eyes); err != nil {
		return out, err
	}
	out.Act, err = store.Act(ctx, act.ID, eyes)
	return out, err
}

func (s *actRoutes) rejectAct(ctx context.Context, in *actInput) (identity.Act, error) {
	act, err := identity.New(s.Store).Act(ctx, in.ID, nil)
	if err != nil {
		return act, kernel.Seen(err, seeActs)
	}
	return identity.New(s.Store).RejectAct(ctx, &act, in.Name)
}
