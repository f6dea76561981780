package containerruntime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"runtime"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"

	"knarr/internal/logonce"
)

// quietLogs sends containerd's warnings and errors to log and drops the rest.
// What containerd would end the process for comes out of the channel instead.
// Once done is called nothing comes any more: containerd goes on complaining
// about what was taken from under it.
func quietLogs(log *slog.Logger) (fatal chan error, done func()) {
	fatal = make(chan error, 1)
	bridge.Lock()
	bridge.log, bridge.fatal, bridge.logged = log, fatal, new(logonce.Filter)
	bridge.Unlock()
	bridge.once.Do(func() {
		std := logrus.StandardLogger()
		std.SetOutput(io.Discard)
		std.SetFormatter(silent{})
		std.SetLevel(logrus.WarnLevel)
		std.AddHook(&bridge)
		// The caller expects never to return from this, so it ends here.
		std.ExitFunc = func(int) { runtime.Goexit() }
	})
	return fatal, func() {
		bridge.Lock()
		defer bridge.Unlock()
		if bridge.fatal == fatal {
			bridge.log = slog.New(slog.DiscardHandler)
		}
	}
}

// bridge forwards logrus to slog. logrus has one logger for the whole process,
// and so the latest runtime's log gets everything.
var bridge logBridge

type logBridge struct {
	sync.Mutex
	once   sync.Once
	log    *slog.Logger
	fatal  chan error
	logged *logonce.Filter // while the shim is away containerd complains of each container at each measurement
}

// ids are those of containers, sandboxes and processes: what is logged of one holds for all.
var ids = regexp.MustCompile(`\b[0-9a-f]{64}\b|\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`)

func (b *logBridge) Levels() []logrus.Level {
	return []logrus.Level{logrus.PanicLevel, logrus.FatalLevel, logrus.ErrorLevel, logrus.WarnLevel}
}

// expected begins what containerd warns of though nothing is amiss.
var expected = []string{
	"failed check for fsverity support",          // not every file system has it
	"failed to load cni during init",             // the first start writes its configuration a moment later
	"failed to load runtime info",                // another runtime's shim is asked by its path alone; it is about mounts that none has
	"ttrpc: received message on inactive stream", // the shim answers a call that its caller has given up
	"`configs` is deprecated",                    // it has the credentials of hosts, for which there is nothing else
}

// isExpected also knows of the file that becomes the network's configuration when
// it is renamed: containerd watches the directory that it is written in.
func isExpected(message string) bool {
	for _, prefix := range expected {
		if strings.HasPrefix(message, prefix) {
			return true
		}
	}
	return strings.HasPrefix(message, "failed to reload cni configuration") && strings.Contains(message, "/net.d/.knarr-")
}

func (b *logBridge) Fire(e *logrus.Entry) error {
	b.Lock()
	log, fatal, logged := b.log, b.fatal, b.logged
	b.Unlock()
	without := func(text any) string { return ids.ReplaceAllString(fmt.Sprint(text), "") }
	if isExpected(e.Message) || e.Level > logrus.FatalLevel && !logged.IsNew(without(e.Message), without(e.Data[logrus.ErrorKey])) {
		return nil
	}
	attrs := make([]slog.Attr, 0, len(e.Data)+1)
	attrs = append(attrs, slog.String("message", e.Message))
	for k, v := range e.Data {
		if k == logrus.ErrorKey {
			k = "err"
		}
		attrs = append(attrs, slog.Any(k, v))
	}
	level := slog.LevelWarn
	if e.Level <= logrus.ErrorLevel {
		level = slog.LevelError
	}
	log.LogAttrs(context.Background(), level, "containerd", attrs...)
	if e.Level <= logrus.FatalLevel {
		err := errors.New(e.Message)
		if cause, ok := e.Data[logrus.ErrorKey].(error); ok {
			err = cause
		}
		select {
		case fatal <- err:
		default:
		}
	}
	return nil
}

// silent formats nothing, since nothing is written.
type silent struct{}

func (silent) Format(*logrus.Entry) ([]byte, error) { return nil, nil }
