// Package config is the config file of serve: how it is read, and a sample of it, both from serve's flags.
package config
