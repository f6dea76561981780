package containerruntime

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"
)

// quietLogs sends containerd's warnings and errors to log and drops the rest.
// What containerd would end the process for comes out of the channel instead.
// Once done is called nothing comes any more: containerd goes on complaining
// about what was taken from under it.
func quietLogs(log *slog.Logger) (fatal chan error, done func()) {
	fatal = make(chan error, 1)
	bridge.Lock()
	bridge.log, bridge.fatal = log, fatal
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
	once  sync.Once
	log   *slog.Logger
	fatal chan error
}

func (b *logBridge) Levels() []logrus.Level {
	return []logrus.Level{logrus.PanicLevel, logrus.FatalLevel, logrus.ErrorLevel, logrus.WarnLevel}
}

// expected begins what containerd warns of though nothing is amiss.
var expected = []string{
	"failed check for fsverity support", // not every file system has it
	"failed to load cni during init",    // the first start writes its configuration a moment later
	"failed to load runtime info",       // another runtime's shim is asked by its path alone; it is about mounts that none has
	"`configs` is deprecated",           // it has the credentials of hosts, for which there is nothing else
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
	if isExpected(e.Message) {
		return nil
	}
	b.Lock()
	log, fatal := b.log, b.fatal
	b.Unlock()
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
