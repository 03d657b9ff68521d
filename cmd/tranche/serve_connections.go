package main

import (
	"context"

	"github.com/tranchehq/tranche/gather/fetch/httpfetch"
	"github.com/tranchehq/tranche/gather/fetch/sqlfetch"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/orchestrator/fetch"
	"github.com/tranchehq/tranche/workqueue"
)

// openConnections reads what plans may reach, and makes what fetches for steps of kind http and sql. Without a file
// there are neither sources nor secrets, and HTTP services at public addresses only.
func (s *serveCommand) openConnections(p *parts) (err error) {
	p.connections = &connections.Connections{}
	if s.Connections != "" {
		if p.connections, err = connections.Load(s.Connections); err != nil {
			return err
		}
	}
	web, err := httpfetch.New(p.connections, httpfetch.Config{UserAgent: "tranche/" + versionText()})
	if err != nil {
		return err
	}
	if err := s.openSchedules(p, web); err != nil {
		return err
	}
	p.restsUntil, p.transport = web.RestsUntil, web.Transport()
	databases := sqlfetch.New(p.connections)
	p.fetchers = map[workqueue.Kind]fetch.Fetchers{workqueue.KindHTTP: web, workqueue.KindSQL: databases}
	p.undo = append(p.undo, func(context.Context) error {
		web.Close()
		databases.Close()
		return nil
	})
	return nil
}
