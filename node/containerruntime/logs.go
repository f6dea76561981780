package containerruntime

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"log/slog"
	"maps"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// quietLogs sends containerd's warnings and errors to log and drops the rest.
// What containerd would end the process for comes out of the channel instead.
// Once done is called nothing comes any more: containerd goes on complaining
// about what was taken from under it.
func quietLogs(log *slog.Logger) (fatal chan error, done func()) {
	fatal = make(chan error, 1)
	bridge.Lock()
	bridge.log, bridge.fatal, bridge.logged = log, fatal, nil
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
	logged map[uint64]time.Time // what the log has, by a digest
}

const (
	// logAgain is when the log has the same again. While the shim is away containerd
	// complains of each container at each measurement.
	logAgain = 10 * time.Minute
	// maxLogged bounds what is remembered; beyond it all is new.
	maxLogged = 1024
)

// ids are those of containers, sandboxes and processes: what is logged of one holds for all.
var (
	ids      = regexp.MustCompile(`\b[0-9a-f]{64}\b|\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`)
	textSeed = maphash.MakeSeed()
)

// isNew says whether the log lacks a text, but for the ids in it, since logAgain.
func (b *logBridge) isNew(text string) bool {
	now, key := time.Now(), maphash.String(textSeed, ids.ReplaceAllString(text, ""))
	b.Lock()
	defer b.Unlock()
	if at, ok := b.logged[key]; ok && now.Sub(at) < logAgain {
		return false
	}
	if len(b.logged) >= maxLogged {
		maps.DeleteFunc(b.logged, func(_ uint64, at time.Time) bool { return now.Sub(at) >= logAgain })
	}
	if b.logged == nil || len(b.logged) >= maxLogged {
		b.logged = map[uint64]time.Time{}
	}
	b.logged[key] = now
	return true
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
	if isExpected(e.Message) || e.Level > logrus.FatalLevel && !b.isNew(fmt.Sprintln(e.Message, e.Data[logrus.ErrorKey])) {
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
