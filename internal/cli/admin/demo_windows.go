package admin

import "errors"

type demoCommands struct {
	Demo demoStory `cmd:"" help:"Make a small bank, gather and compose its year-end, break it, repair it, prove it."`
}

type demoStory struct{}

func (demoStory) Run() error {
	return errors.New("the demo runs servers and kills them as Unix lets it: see it on Linux, macOS or WSL")
}
