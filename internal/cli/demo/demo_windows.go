package demo

import "errors"

// Commands are the command that tells the demo's story, and the services that it starts.
type Commands struct {
	Demo Story `cmd:"" help:"Make a small bank, gather and compose its year-end, break it, repair it, prove it."`
}

// Story is told elsewhere.
type Story struct{}

// Run says where the demo can be seen.
func (Story) Run() error {
	return errors.New("the demo runs servers and kills them as Unix lets it: see it on Linux, macOS or WSL")
}
