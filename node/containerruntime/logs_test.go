package containerruntime

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"knarr/internal/logonce"
)

// A start that goes well warns of nothing, and a network configuration that
// cannot be used is reported.
func TestExpectedMessages(t *testing.T) {
	for message, want := range map[string]bool{
		"failed to load cni during init, please check CRI plugin status before setting up network for pods":                  true,
		"failed to reload cni configuration after receiving fs change event(WRITE         \"/d/cni/net.d/.knarr-46470766\")": true,
		"failed to reload cni configuration after receiving fs change event(WRITE         \"/d/cni/net.d/10-other.conf\")":   false,
		"PullImage \"knarr.test/hello:1\" failed": false,
	} {
		if got := isExpected(message); got != want {
			t.Errorf("%s: %v", message, got)
		}
	}
}

// TestRepeatedMessages: what containerd says of each container is told of one, and again
// only after a while.
func TestRepeatedMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		b := &logBridge{log: slog.New(slog.NewTextHandler(&out, nil)), fatal: make(chan error, 1), logged: new(logonce.Filter)}
		say := func(message, err string) {
			e := &logrus.Entry{Message: message, Level: logrus.ErrorLevel, Data: logrus.Fields{logrus.ErrorKey: errors.New(err)}}
			if err := b.Fire(e); err != nil {
				t.Error(err)
			}
		}
		lines := func(want int) {
			t.Helper()
			if got := strings.Count(out.String(), "\n"); got != want {
				t.Fatalf("%d lines, want %d:\n%s", got, want, out.String())
			}
		}
		for i := range 100 {
			say(fmt.Sprintf("collecting metrics for %064x", i), "context deadline exceeded")
		}
		lines(1)
		say(fmt.Sprintf("collecting metrics for %064x", 1), "no such group")
		say("collecting nothing", "context deadline exceeded")
		lines(3)
		<-time.After(logonce.Again)
		say(fmt.Sprintf("collecting metrics for %064x", 1), "context deadline exceeded")
		lines(4)
		fatal := &logrus.Entry{Message: "fatal", Level: logrus.FatalLevel, Data: logrus.Fields{}}
		for range 2 {
			if err := b.Fire(fatal); err != nil {
				t.Error(err)
			}
			if err := <-b.fatal; err.Error() != "fatal" {
				t.Error(err)
			}
		}
	})
}
