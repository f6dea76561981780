package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"
)

// attempts are those to reach the database for the first time, as kine logs them.
type attempts struct {
	mu     sync.Mutex
	err    string
	making string // why the database itself could not be made
	over   bool
	cancel func(error) // of this one
}

// listen reads along what kine logs, and prints warnings and errors.
func listen() *attempts {
	a := &attempts{}
	logrus.SetLevel(logrus.WarnLevel)
	logrus.SetOutput(os.Stdout)
	logrus.SetFormatter(a)
	return a
}

// What kine says of a request repeats the object in it, which may be a Secret,
// and the error is the request's answer anyway.
var ofRequests = []string{"error in txn ", "error in put ", "error in compact ", "error while range on "}

const noDatabase = "SQLSTATE 3D000"

// Errors that another try does not change: authentication, missing databases, certificates.
var final = []string{"SQLSTATE 28", noDatabase, "SQLSTATE 42501", "Error 1044", "Error 1045", "Error 1049", "Error 1698", "x509: ", "unable to open database file", "is not a database", "no such file or directory"}

// Format makes a line of an entry, or none.
func (a *attempts) Format(e *logrus.Entry) ([]byte, error) {
	for _, prefix := range ofRequests {
		if strings.HasPrefix(e.Message, prefix) {
			return nil, nil
		}
	}
	if a.waiting() {
		why, ok := strings.CutPrefix(e.Message, "Failed to ping database connection: ")
		if ok && a.failed(why) {
			a.give(errors.New(a.last()))
		}
		if strings.HasPrefix(e.Message, "failed to create database ") {
			a.recordFailure(e.Message)
		}
		return nil, nil // the first line is the answer
	}
	if strings.HasSuffix(e.Message, context.Canceled.Error()) {
		return nil, nil // it is the end
	}
	return fmt.Appendf(nil, "%s\n", strings.ReplaceAll(e.Message, "\n", " ")), nil
}

func (a *attempts) waiting() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.over
}

// failed notes why an attempt did, and reports whether another would too.
func (a *attempts) failed(why string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = strings.Join(strings.Fields(why), " ")
	return slices.ContainsFunc(final, func(f string) bool { return strings.Contains(a.err, f) })
}

// during says what gives up the attempt under way.
func (a *attempts) during(cancel func(error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cancel, a.making = cancel, ""
}

func (a *attempts) give(up error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cancel(up)
}

func (a *attempts) recordFailure(why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.making = why
}

// because adds to a failure what led to it.
func (a *attempts) because(err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.making == "" {
		return err
	}
	return fmt.Errorf("%w; %s", err, a.making)
}

// last is why the newest attempt failed.
func (a *attempts) last() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err == "" {
		return "it is silent"
	}
	return a.err
}

// end says that the database is open, or will not be.
func (a *attempts) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
}
