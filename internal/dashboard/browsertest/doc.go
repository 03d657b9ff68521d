// Package browsertest holds tests of the dashboard in a real browser: people's ways through it, on the keyboard, on a
// phone and in the dark, with each role, against hostile data and over a restart of the server. It has no code of its
// own.
//
// One headless Chromium serves all tests of a process, and each page is a browser context of its own: no test sees the
// cookies of another. What a page writes to its console as an error, what its content security policy refuses and what
// it asks for in vain fail the test that opened it. Behind the pages stand real servers, nodes, services and databases.
//
// Chromium, or Chrome, is found in PATH, or where the variables CHROMIUM or CHROME say; `make deps` installs it.
package browsertest
