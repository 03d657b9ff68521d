package api

import (
	"cmp"
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/erasure"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/retention"
)

// maxRetentionAge is the maximum age that can be set.
const maxRetentionAge = 100 * 366 * 24 * time.Hour

const seeRetention = "tranche retention show"

const maxGoing = 100

// RetentionSettings limits how much of a kind is kept. Whatever exceeds a limit is deleted, oldest first. Keeping all
// must be requested explicitly, so that a forgotten or misread limit never means it.
type RetentionSettings struct {
	Age      string `json:"age,omitempty" maxLength:"40" doc:"kept for this long; absent: no limit" example:"90d"`
	MaxCount int64  `json:"max_count,omitempty" doc:"how many are kept; absent: no limit"`
	MaxBytes int64  `json:"max_bytes,omitempty" doc:"roughly this much is kept; absent: no limit"`
	KeepAll  bool   `json:"keep_all,omitempty" doc:"there is no limit: everything of the kind is kept"`
}

// RetentionKind is a kind with its limits. Without limits everything is kept.
type RetentionKind struct {
	Kind retention.RetentionKind `json:"kind"`
	RetentionSettings

	ChangedBy   string     `json:"changed_by,omitempty" doc:"absent: the limits are the defaults"`
	ChangedAt   time.Time  `json:"changed_at"`
	Deleted     int64      `json:"deleted" doc:"ever"`
	LastDeleted int64      `json:"last_deleted" doc:"in the last round that deleted any"`
	LastAt      *time.Time `json:"last_at,omitempty" doc:"when that was; absent: never"`
}

// RetentionList lists all kinds, and the runs being deleted.
type RetentionList struct {
	Kinds []RetentionKind   `json:"kinds"`
	Going []inspect.GoneRun `json:"going" doc:"runs that are being deleted, up to 100"`
}

// RetentionRun requests an immediate deletion of what exceeds its limits.
type RetentionRun struct {
	DryRun bool `json:"dry_run,omitempty" doc:"change nothing; show what would be deleted"`
}

// RetentionDue is what exceeds its limits.
type RetentionDue struct {
	DryRun bool                `json:"dry_run"`
	Kinds  []retention.KindDue `json:"kinds"`
}

const (
	setRetentionText = `Replaces all limits: an absent one is removed; to remove all, send "keep_all": true. The leader
deletes what exceeds them within ten minutes, in small pieces.`
	runRetentionText = `The leader starts immediately; the answer says what will be deleted and does not wait. Each run
leaves the lists first; its rows are then deleted in small pieces.`
)

func (s *adminRoutes) registerRetention(api huma.API) {
	apicore.Register(s.Core, api, apicore.Get("show-retention", "/retention", "How long data is kept"), s.showRetention)
	apicore.Register(s.Core, api, apicore.Previewed(apicore.FourEyes("retention", apicore.ByAdmin(huma.Operation{
		OperationID: "set-retention", Method: http.MethodPut, Path: "/retention/{kind}",
		Summary: "Set the limits of a kind", Description: setRetentionText,
	})), presentLimits(s.Store)), s.setRetention)
	apicore.Register(s.Core, api, apicore.ByAdmin(apicore.Post("run-retention", "/retention/run",
		"Apply the limits now", runRetentionText)), s.runRetention)
	apicore.Register(s.Core, api, apicore.FourEyes("erase", apicore.ByAdmin(apicore.Post("erase", "/erase",
		"Erase a key's data",
		"Payloads, results, error messages, dead letters, quarantined messages and parked operations are deleted, "+
			"and a marker replaces the key, in all runs or one. Counts, states and codes stay. Refused while "+
			"work with the key is in progress. Repeat an interrupted erasure to finish it."))), s.erase)
}

func (s *adminRoutes) showRetention(ctx context.Context, _ *struct{}) (RetentionList, error) {
	all, err := retention.New(s.Store).Retention(ctx)
	if err != nil {
		return RetentionList{}, err
	}
	list := RetentionList{Kinds: make([]RetentionKind, len(all))}
	for i := range all {
		list.Kinds[i] = retentionKind(&all[i])
	}
	list.Going, err = retention.New(s.Store).GoingRuns(ctx, maxGoing)
	return list, err
}

func retentionKind(r *retention.Retention) RetentionKind {
	k := RetentionKind{Kind: r.Kind, ChangedBy: r.ChangedBy, ChangedAt: r.ChangedAt, Deleted: r.Deleted,
		LastDeleted: r.LastDeleted, LastAt: r.LastAt}
	k.KeepAll = r.None()
	if r.Age != nil {
		k.Age = retention.Age(*r.Age)
	}
	if r.Count != nil {
		k.MaxCount = *r.Count
	}
	if r.Bytes != nil {
		k.MaxBytes = *r.Bytes
	}
	return k
}

type setRetentionInput struct {
	apicore.Actor
	Kind string `path:"kind" doc:"as show-retention lists them, such as runs"`
	Body RetentionSettings
}

// Check also refuses what a second administrator could only reject.
func (in *setRetentionInput) Check() error {
	_, err := in.Body.limits()
	return cmp.Or(in.Actor.Check(), err)
}

func presentLimits(db *database.DB) func(context.Context, *setRetentionInput) (any, error) {
	return func(ctx context.Context, in *setRetentionInput) (any, error) {
		all, err := retention.New(db).Retention(ctx)
		for i := range all {
			if string(all[i].Kind) == in.Kind {
				return map[string]any{"present": retentionKind(&all[i]).RetentionSettings}, nil
			}
		}
		return nil, cmp.Or(err, apicore.Seen(&retention.UnknownKindError{Kind: in.Kind}, seeRetention))
	}
}

func (s *adminRoutes) setRetention(ctx context.Context, in *setRetentionInput) (RetentionKind, error) {
	limits, err := in.Body.limits()
	if err != nil {
		return RetentionKind{}, err
	}
	set, err := retention.New(s.Store).SetRetention(ctx, retention.RetentionKind(in.Kind), limits, in.Name)
	if err != nil {
		return RetentionKind{}, apicore.Seen(err, seeRetention)
	}
	s.Wake(orchestrator.TaskRetention) // otherwise within ten minutes
	return retentionKind(&set), nil
}

func (r *RetentionSettings) limits() (l retention.Limits, err error) {
	if r.Age != "" {
		age, err := readAge(r.Age)
		if err != nil {
			return l, err
		}
		l.Age = &age
	}
	if r.MaxCount != 0 {
		l.Count = &r.MaxCount
	}
	if r.MaxBytes != 0 {
		l.Bytes = &r.MaxBytes
	}
	switch {
	case l.None() && !r.KeepAll:
		return l, apicore.BadInput(`there is no limit, and everything would be kept permanently; give age, max_count or ` +
			`max_bytes, or "keep_all": true if that is what is meant`)
	case r.KeepAll && !l.None():
		return l, apicore.BadInput("keep_all is true, but a limit is given (" + l.String() + "); leave one of them out")
	}
	return l, nil
}

// readAge parses 90d, 36h or 1d12h.
func readAge(text string) (time.Duration, error) {
	days, rest, found := strings.Cut(text, "d")
	if !found {
		days, rest = "0", text
	}
	n, err := strconv.ParseUint(days, 10, 16)
	more, wrong := time.ParseDuration(cmp.Or(rest, "0s"))
	age := time.Duration(n)*24*time.Hour + more
	if err != nil || wrong != nil || more < 0 || max(age, more) > maxRetentionAge {
		return 0, apicore.BadInput("age is " + strconv.Quote(apicore.Echo(text)) +
			"; write it like 90d, 36h or 1d12h, up to 36600d")
	}
	return age, nil
}

type runRetentionInput struct {
	apicore.Actor
	Body RetentionRun
}

func (s *adminRoutes) runRetention(ctx context.Context, in *runRetentionInput) (RetentionDue, error) {
	due, err := retention.New(s.Store).RetentionDue(ctx)
	if err == nil && !in.Body.DryRun {
		err = retention.New(s.Store).AskRetention(ctx, in.Name)
	}
	if err != nil {
		return RetentionDue{}, err
	}
	if !in.Body.DryRun {
		s.Wake(orchestrator.TaskRetention) // otherwise within ten minutes
	}
	return RetentionDue{DryRun: in.Body.DryRun, Kinds: due}, nil
}

// EraseSettings says which key to erase.
type EraseSettings struct {
	Key    string `json:"key" minLength:"1" doc:"the key of items and of operations of collectors"`
	Run    string `json:"run,omitempty" doc:"out of this run only: ID, part of an ID, name, or last"`
	DryRun bool   `json:"dry_run,omitempty" doc:"change nothing; show what would be erased"`
	Reason string `json:"reason,omitempty" maxLength:"500" doc:"why, for the audit log; do not name the key in it"`
}

// ErasedKey is what was, or would be, erased of a key.
type ErasedKey struct {
	DryRun    bool              `json:"dry_run" doc:"nothing was changed"`
	Marker    string            `json:"marker" doc:"replaces the key"`
	Runs      []workqueue.RunID `json:"runs" nullable:"false" doc:"that had the key"`
	Erased    erasure.Erased    `json:"erased"`
	Unreached []string          `json:"unreached" nullable:"false" doc:"what erasure does not reach, human-readable"`
}

type eraseInput struct {
	apicore.Changer
	Body EraseSettings
}

func (s *adminRoutes) erase(ctx context.Context, in *eraseInput) (ErasedKey, error) {
	set := &in.Body
	err := cmp.Or(apicore.CheckText("key", set.Key, intake.MaxKeyBytes),
		apicore.CheckText("reason", set.Reason, apicore.MaxReasonBytes))
	if err != nil {
		return ErasedKey{}, err
	}
	run, err := s.FindRun(ctx, set.Run)
	if err != nil {
		return ErasedKey{}, err
	}
	if set.Run != "" {
		set.Run = run.String() // an act that is confirmed later is about the same run
	}
	done, err := erasure.New(s.Store).Erase(ctx, erasure.Request{Run: run, Key: set.Key, DryRun: set.DryRun,
		Reason: set.Reason, Actor: in.Name})
	return ErasedKey{DryRun: set.DryRun, Marker: done.Marker, Runs: append([]workqueue.RunID{}, done.Runs...),
		Erased: done.Erased, Unreached: append(done.Kept, erasure.Unreached()...)}, err
}
