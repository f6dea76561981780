package kubelet

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"knarr/internal/inotify"
	"knarr/internal/run"
)

// A dirWatch reports changes of a directory, or of a file, as long as inotify
// works: its user reads it from time to time also without a report.
type dirWatch struct {
	path string
	// dir is what is watched now.
	dir     string
	watcher *fsnotify.Watcher
	events  chan bool
	// next and delay are when and after what time it is tried again.
	next   time.Time
	delay  delay
	logged string
}

const (
	watchFirst = time.Second
	watchMost  = time.Minute
)

// watched is the directory in which a change of the path shows: a file can
// become a directory and the other way round.
func (d *dirWatch) watched() string {
	if st, err := os.Stat(d.path); err == nil && !st.IsDir() {
		return filepath.Dir(d.path)
	}
	return d.path
}

// ensure watches the directory, which it makes if it is not there, and is how
// long to wait until that is tried again after it failed.
func (d *dirWatch) ensure() (retry time.Duration) {
	if d.watcher != nil && d.dir == d.watched() {
		return never
	}
	d.close()
	if left := time.Until(d.next); left > 0 {
		return left
	}
	err := d.open()
	if err == nil {
		d.logged, d.delay = "", delay{}
		return never
	}
	if d.logged != err.Error() {
		d.logged = err.Error()
		slog.Warn("watch static pods, which are read from time to time meanwhile", "path", d.path, "err", err)
	}
	if d.delay.first == 0 {
		d.delay = delay{first: watchFirst, most: watchMost}
	}
	retry = d.delay.next(time.Now())
	d.next = time.Now().Add(retry)
	return retry
}

func (d *dirWatch) open() error {
	d.dir = d.watched()
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return err
	}
	w, err := inotify.NewWatcher()
	if err != nil {
		return err
	}
	if err := w.Add(d.dir); err != nil {
		_ = w.Close()
		return err
	}
	if d.dir != d.watched() {
		_ = w.Close()
		return errors.New("it was replaced meanwhile")
	}
	d.watcher, d.events = w, make(chan bool, 1)
	events := d.events
	run.Go("static pods watch", func() { forward(w, d.dir, events) })
	return nil
}

// forward reports events until the watcher is closed: true for a change, false
// for one after which it sees no more.
func forward(w *fsnotify.Watcher, dir string, to chan bool) {
	for {
		ok := true
		select {
		case ev, open := <-w.Events:
			if !open {
				return
			}
			ok = ev.Name != dir || !ev.Has(fsnotify.Remove) && !ev.Has(fsnotify.Rename)
		case _, open := <-w.Errors:
			if !open {
				return
			}
			ok = false
		}
		select {
		case to <- ok:
		default:
			if !ok { // this matters more than what is there
				select {
				case <-to:
				default:
				}
				to <- ok
				return
			}
		}
		if !ok {
			return
		}
	}
}

// changed receives changes; none while nothing is watched.
func (d *dirWatch) changed() <-chan bool { return d.events }

// drain forgets changes that came meanwhile.
func (d *dirWatch) drain() {
	if d.events == nil {
		return
	}
	select {
	case ok := <-d.events:
		if !ok {
			d.close()
		}
	default:
	}
}

func (d *dirWatch) close() {
	if d.watcher != nil {
		_ = d.watcher.Close()
		d.watcher, d.events = nil, nil
	}
}
