package api

import (
	"cmp"
	"context"
	"maps"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/orchestrator"
	nodestreams "github.com/tranchehq/tranche/orchestrator/streams"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/doctor"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/session"
)

// Info describes this server and where its parts are.
type Info struct {
	Version string              `json:"version"`
	Commit  string              `json:"commit,omitempty" doc:"of the source"`
	Date    string              `json:"date,omitempty" doc:"of the commit"`
	Session workqueue.SessionID `json:"session"`
	NATS    string              `json:"nats"`
	Parts   map[string]string   `json:"parts"`
}

// doctorTimeout limits a run of the doctor.
const doctorTimeout = 10 * time.Minute

type adminRoutes struct {
	*apicore.Core

	config *Config
	health *health.Watch // conditions that need an operator
	whole  *health.Watch // the same, with full lists
}

func (s *adminRoutes) Register(api huma.API) {
	s.registerAudit(api)
	s.registerRetention(api)
	s.registerStreamSettings(api)
	s.registerSystem(api)
	s.registerSession(api)
	s.registerTokens(api)
	s.registerNamespaces(api)
	s.registerSessions(api)
	s.registerHealth(api)
}

func (s *adminRoutes) registerSystem(api huma.API) {
	apicore.Register(s.Core, api, apicore.In(apicore.Anywhere, apicore.ByWatcher(
		apicore.Get("info", "/info", "Version and parts of the server"))), s.info)
	check := apicore.ScansRun(apicore.Get("doctor", "/doctor", "Check the whole database"))
	apicore.RegisterWithin(s.Core, api, check, doctorTimeout, func(ctx context.Context, _ *struct{}) (doctor.Report,
		error) {
		return doctor.New(s.Store).Doctor(ctx)
	})
}

func (s *adminRoutes) info(ctx context.Context, _ *struct{}) (Info, error) {
	info := Info{
		Version: s.config.Build.Version, Commit: s.config.Build.Commit, Date: s.config.Build.Date,
		Session: s.Node.Session(), Parts: map[string]string{},
	}
	if apicore.Allows(ctx, access.Viewer) {
		info.NATS = s.NC.ConnectedUrlRedacted()
		maps.Copy(info.Parts, s.config.Info)
	}
	return info, nil
}

func (s *adminRoutes) registerAudit(api huma.API) {
	list := apicore.In(apicore.Anywhere, apicore.ReadsMany(apicore.Get("list-audit", "/audit",
		"List operator actions, newest first")))
	apicore.Register(s.Core, api, list, s.listAudit)
	export := apicore.ReadsMany(apicore.Get("export-audit", "/audit/export",
		"List audit entries in the order of their chain"))
	apicore.Register(s.Core, api, export, func(ctx context.Context, in *struct {
		After int64 `query:"after" minimum:"0" doc:"only rows after this seal; 0: from the oldest"`
		Limit int   `query:"limit" minimum:"1" maximum:"500" default:"500"`
	}) (inspect.AuditPage, error) {
		return inspect.New(s.Store).ChainedAudit(ctx, in.After, in.Limit)
	})
	verify := apicore.ScansRun(apicore.Get("verify-audit", "/audit/verify", "Check the chain of the audit log"))
	apicore.RegisterWithin(s.Core, api, verify, doctorTimeout, func(ctx context.Context, in *struct {
		Head string `query:"head" maxLength:"100" doc:"the head of an earlier report: the log must contain it"`
	}) (doctor.AuditReport, error) {
		return doctor.New(s.Store).VerifyAudit(ctx, in.Head)
	})
}

type auditInput struct {
	Run string `query:"run" doc:"only actions on this run: ID, part of an ID, name, or last"`
	inspect.AuditFilter
}

func (s *adminRoutes) listAudit(ctx context.Context, in *auditInput) (page inspect.AuditPage, err error) {
	if in.AuditFilter.Run, err = s.FindRun(ctx, in.Run); err != nil {
		return page, err
	}
	return inspect.New(s.Store).Audit(ctx, in.AuditFilter)
}

// StreamTrouble is why the streams cannot be configured as set.
type StreamTrouble struct {
	Error   string     `json:"error"`
	Since   time.Time  `json:"since"`
	Tries   int        `json:"tries"`
	NextTry *time.Time `json:"next_try,omitempty"`
}

// Streams is the configuration of the streams, for all nodes, and their actual state.
type Streams struct {
	Auto     bool `json:"auto" doc:"replicas is not set: three in a cluster, else one"`
	Replicas int  `json:"replicas" doc:"wanted; with auto, the result; 0: not known without NATS"`
	session.StreamValues
	EventAge workqueue.Duration `json:"event_age"`
	Bytes    int64              `json:"bytes" doc:"of all streams together, on each server that keeps them"`

	ChangedBy string         `json:"changed_by"`
	ChangedAt time.Time      `json:"changed_at"`
	Applied   bool           `json:"applied" doc:"the streams have these settings"`
	AppliedAt *time.Time     `json:"applied_at,omitempty"`
	Trouble   *StreamTrouble `json:"trouble,omitempty" doc:"why not yet; the leader keeps trying"`

	Cluster string       `json:"cluster,omitempty" doc:"of the NATS that this server is connected to; absent: it is alone"`
	Unknown string       `json:"unknown,omitempty" doc:"why the state of the streams is unknown; absent: it is known"`
	Streams []StreamView `json:"streams" doc:"empty: see unknown"`
}

// StreamView is the state of one stream.
type StreamView struct {
	Name     string     `json:"name"`
	Missing  bool       `json:"missing,omitempty" doc:"it does not exist yet; nodes create it"`
	Replicas int        `json:"replicas"`
	MaxBytes int64      `json:"max_bytes"`
	Bytes    uint64     `json:"bytes" doc:"that it holds"`
	Messages uint64     `json:"messages"`
	Leader   string     `json:"leader,omitempty" doc:"the server that leads it"`
	Behind   []string   `json:"behind" doc:"servers whose copy is missing or lags"`
	Differs  []string   `json:"differs" doc:"how it differs from its settings"`
	Why      string     `json:"why,omitempty" doc:"why it is not"`
	Created  *time.Time `json:"created,omitempty"`
}

type changeStreamsInput struct {
	apicore.Actor
	Body session.StreamChanges
}

func (s *adminRoutes) registerStreamSettings(api huma.API) {
	apicore.Register(s.Core, api, apicore.Get("show-streams", "/streams",
		"Settings and state of the JetStream streams"), s.showStreams)
	apicore.Register(s.Core, api, apicore.ByAdmin(apicore.Post("set-streams", "/streams/settings",
		"Set replicas and sizes of the JetStream streams",
		"The leader applies them within seconds. What JetStream refuses stays configured, is "+
			"shown by show-streams and health, and retried. Changes that would delete messages are refused.")), s.setStreams)
}

func (s *adminRoutes) showStreams(ctx context.Context, _ *struct{}) (Streams, error) {
	set, err := session.New(s.Store).StreamsSet(ctx)
	if err != nil {
		return Streams{}, err
	}
	view, _ := s.streamsAre(ctx, set)
	return view, nil
}

func (s *adminRoutes) setStreams(ctx context.Context, in *changeStreamsInput) (Streams, error) {
	if in.Body == (session.StreamChanges{}) {
		return Streams{}, apicore.BadInput("give replicas, work_bytes, reply_bytes, stage_bytes, flow_bytes, event_bytes, " +
			"dead_bytes or event_age")
	}
	set, err := session.New(s.Store).StreamsSet(ctx)
	if err != nil {
		return Streams{}, err
	}
	// What cannot be seen now is left to the leader, which checks again.
	set.StreamValues = in.Body.On(set.StreamValues)
	if _, loses := s.streamsAre(ctx, set); loses != "" {
		return Streams{}, &workqueue.SettingError{Detail: loses}
	}
	if set, err = session.New(s.Store).ChangeStreams(ctx, in.Body, in.Name); err != nil {
		return Streams{}, apicore.Seen(err, "tranche streams")
	}
	s.Wake(orchestrator.TaskStreams)
	view, _ := s.streamsAre(ctx, set)
	return view, nil
}

// streamsAre compares the streams with their settings and returns what applying these would lose.
func (s *adminRoutes) streamsAre(ctx context.Context, set session.StreamSettings) (view Streams, loses string) {
	cfg := nodestreams.StreamConfig(&set.StreamValues)
	view = Streams{Auto: set.Replicas == 0, Replicas: set.Replicas, StreamValues: nodestreams.StreamValues(&cfg),
		EventAge: workqueue.Duration(cfg.EventMaxAge),
		Bytes:    cfg.Bytes(), ChangedBy: set.ChangedBy, ChangedAt: set.ChangedAt,
		Applied: set.AppliedRevision == set.Revision, AppliedAt: set.AppliedAt, Streams: []StreamView{}}
	if set.Trouble != "" {
		view.Trouble = &StreamTrouble{Error: set.Trouble, Since: *set.Since, Tries: set.Tries, NextTry: set.NextTry}
	}
	if !s.NC.IsConnected() {
		view.Unknown = apicore.ErrNoNATS.Error()
		return view, ""
	}
	view.Cluster = s.NC.ConnectedClusterName()
	if view.Auto {
		cfg.Replicas, cfg.MoreReplicas = stream.UsualReplicas(s.NC), true
		view.Replicas = cfg.Replicas
	}
	ctx, cancel := context.WithTimeout(ctx, apicore.PingTimeout)
	defer cancel()
	js, err := jetstream.New(s.NC)
	var states []stream.State
	if err == nil {
		states, err = stream.Read(ctx, js, cfg)
	}
	if err != nil {
		view.Unknown = apicore.Cut(err.Error(), 3*apicore.MaxEchoed)
		return view, ""
	}
	for i := range states {
		view.Streams = append(view.Streams, streamView(&states[i], &set))
		loses = cmp.Or(loses, states[i].Loses())
	}
	return view, loses
}

func streamView(s *stream.State, set *session.StreamSettings) StreamView {
	v := StreamView{Name: s.Want.Name, Missing: s.Have == nil, Behind: []string{},
		Differs: append([]string{}, s.Differs()...)}
	if s.Have == nil {
		return v
	}
	have := s.Have
	v.Replicas, v.MaxBytes, v.Bytes, v.Messages = have.Config.Replicas, have.Config.MaxBytes, have.State.Bytes,
		have.State.Msgs
	v.Created = &have.Created
	if have.Cluster != nil {
		v.Leader = have.Cluster.Leader
		for _, peer := range have.Cluster.Replicas {
			if !peer.Current || peer.Offline {
				v.Behind = append(v.Behind, peer.Name)
			}
		}
	}
	switch {
	case len(v.Differs) == 0:
	case set.Trouble != "":
		v.Why = set.Trouble
	default:
		v.Why = "the leader has not tried yet; tranche nodes shows its task " + orchestrator.TaskStreams
	}
	return v
}
