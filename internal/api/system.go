package api

import (
	"context"
	"maps"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/doctor"
)

// Info says what this server is and where its parts are.
type Info struct {
	Version string              `json:"version"`
	Commit  string              `json:"commit,omitempty" doc:"of the source"`
	Date    string              `json:"date,omitempty" doc:"of the commit"`
	Session workqueue.SessionID `json:"session"`
	NATS    string              `json:"nats"`
	Parts   map[string]string   `json:"parts"`
}

func (s *Server) registerSystem(api huma.API) {
	register(s, api, get("info", "/info", "What this server is"), s.info)
	check := heavy(get("doctor", "/doctor", "Check the invariants over the whole database"))
	registerWithin(s, api, check, doctorTimeout, func(ctx context.Context, _ *struct{}) (doctor.Report, error) {
		return doctor.New(s.store).Doctor(ctx)
	})
}

func (s *Server) info(context.Context, *struct{}) (Info, error) {
	info := Info{
		Version: s.config.Build.Version, Commit: s.config.Build.Commit, Date: s.config.Build.Date,
		Session: s.engine.Session(), NATS: s.nc.ConnectedUrlRedacted(), Parts: map[string]string{},
	}
	maps.Copy(info.Parts, s.config.Info)
	return info, nil
}
