package endpoints

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"knarr/controlplane/apiserver/metrics"
	"knarr/controlplane/apiserver/request"
	"knarr/controlplane/apiserver/watchcache"
)

// bookmarkEvery is how often a watcher that asked for bookmarks gets one.
const bookmarkEvery = time.Minute

// watch streams changes until the client leaves or the time is up.
func (c *call) watch() error {
	opts, err := c.listOptions()
	if err != nil {
		return err
	}
	if c.out, err = c.negotiate(true); err != nil {
		return err
	}
	if c.custom != nil && c.out.format == formatProtobuf && c.out.as == "" {
		return notAcceptable()
	}
	q := watchcache.WatchQuery{
		Namespace: c.info.Namespace, Name: c.info.Name,
		Labels: opts.LabelSelector, Fields: opts.FieldSelector,
		ResourceVersion: opts.ResourceVersion, SendInitialEvents: opts.SendInitialEvents,
	}
	if c.gvr.Resource == "namespaces" && c.gvr.Group == "" {
		q.Namespace = ""
	}
	q.FieldSet, q.Object = c.fieldSet(), c.selectable()
	life := c.s.cfg.MinWatch + rand.N(c.s.cfg.MinWatch)
	if opts.TimeoutSeconds != nil && *opts.TimeoutSeconds > 0 {
		life = time.Duration(*opts.TimeoutSeconds) * time.Second
	}
	// A watch has no other bound while the store is silent.
	opening, cancel := context.WithTimeout(c.ctx, life)
	w, err := c.store.Watch(opening, q)
	late := opening.Err() != nil && c.ctx.Err() == nil
	cancel()
	if whole := c.store.CheckReadable(); err == nil && whole != nil {
		w.Stop()
		return c.reinitializing(whole)
	}
	request.Started(c.ctx)
	if late && err != nil {
		err = statusError(http.StatusInternalServerError, metav1.StatusReasonInternalError, context.DeadlineExceeded.Error())
	} else if err != nil {
		var tooOld *watchcache.TooOldError
		var invalid *watchcache.InvalidError
		if errors.As(err, &invalid) && opts.ResourceVersion != "" {
			return statusError(http.StatusInternalServerError, "", "resourceVersion: "+err.Error()) // upstream's slip, seen by clients
		}
		if !errors.As(err, &tooOld) {
			return c.reinitializing(err)
		}
		// A version too old is reported inside the stream, as an event.
	}
	if w != nil {
		defer w.Stop()
	}
	stream, serr := newStream(c, life)
	if serr != nil {
		return serr
	}
	defer stream.close()
	if err != nil {
		stream.fail(c.fromCache(err, ""))
		return nil
	}
	stream.run(w, life, opts.AllowWatchBookmarks, opts.SendInitialEvents != nil && *opts.SendInitialEvents)
	return nil
}

// A stream writes watch frames to one client.
type stream struct {
	c       *call
	buf     *bytes.Buffer
	send    func([]byte) error
	end     func()
	done    <-chan struct{}
	whole   bool  // frames may not be sent in parts
	columns bool  // a Table's columns have been sent
	sent    int   // bytes
	sizes   []int // of events that have not been counted
	counts  *metrics.Events
}

func newStream(c *call, life time.Duration) (*stream, error) {
	s := &stream{c: c, buf: getBuffer(), done: c.ctx.Done(), end: func() {}, counts: c.s.cfg.Watches.Of(c.gvr)}
	if request.IsWebSocket(c.r) {
		s.whole = true
		if err := s.webSocket(); err != nil {
			putBuffer(s.buf)
			return nil, err
		}
		return s, nil
	}
	contentType := typeJSON
	if c.out.format == formatProtobuf {
		contentType = typeProtobuf + ";stream=watch"
	}
	h := c.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-cache, private")
	flush := http.NewResponseController(c.w)
	// A server-wide write deadline must not end a watch.
	flush.SetWriteDeadline(time.Time{})
	c.w.WriteHeader(http.StatusOK)
	flush.Flush()
	s.send = func(b []byte) error {
		if _, err := c.w.Write(b); err != nil {
			return err
		}
		return flush.Flush()
	}
	return s, nil
}

func (s *stream) close() {
	s.end()
	putBuffer(s.buf)
}

// flushSize bounds what is gathered before it is sent.
const flushSize = 256 * 1024

func (s *stream) run(w *watchcache.Watcher, life time.Duration, bookmarks, initial bool) {
	end := time.NewTimer(life)
	defer end.Stop()
	var tick <-chan time.Time
	if bookmarks {
		ticker := time.NewTicker(bookmarkEvery)
		defer ticker.Stop()
		tick = ticker.C
	}
	var batch []watchcache.Delivery
	for {
		var err error
		batch, err = w.Poll(batch[:0])
		for i := range batch {
			before := s.sent + s.buf.Len()
			if ferr := s.append(&batch[i]); ferr != nil {
				s.fail(ferr)
				return
			}
			s.sizes = append(s.sizes, s.sent+s.buf.Len()-before)
			if s.buf.Len() >= flushSize && s.flush() != nil {
				return
			}
		}
		clear(batch)
		if s.flush() != nil {
			return
		}
		if errors.Is(err, watchcache.ErrEnded) {
			return
		}
		if err != nil {
			s.fail(s.c.fromCache(err, ""))
			return
		}
		select {
		case <-s.done:
			return
		case <-end.C:
			return
		case <-w.C():
		case <-tick:
			// No bookmark may come before the one that ends the initial state.
			if s.bookmark(w.Revision(), false) != nil || s.flush() != nil {
				return
			}
		}
	}
}

func (s *stream) flush() error {
	if len(s.sizes) > 0 {
		s.counts.ObserveSent(s.sizes)
		s.sizes = s.sizes[:0]
	}
	if s.buf.Len() == 0 {
		return nil
	}
	err := s.send(s.buf.Bytes())
	s.sent += s.buf.Len()
	s.buf.Reset()
	return err
}

// pass sends bytes that others share, after what was gathered.
func (s *stream) pass(shared []byte) error {
	err := s.flush()
	if err == nil {
		err = s.send(shared)
		s.sent += len(shared)
	}
	return err
}

// append adds one delivery's frame. Most are shared with all other watchers.
func (s *stream) append(d *watchcache.Delivery) error {
	c := s.c
	if d.Record == nil || d.Type == apiwatch.Bookmark {
		return s.bookmark(d.Revision, d.InitialEnd)
	}
	if c.custom != nil && c.out.as == "" {
		_, data, err := d.Record.See(c.served)
		if err != nil {
			return err
		}
		s.buf.WriteString(`{"type":"` + string(d.Type) + `","object":`)
		if len(data) < watchcache.LargeSize || s.whole {
			s.buf.Write(data)
		} else if err := s.pass(data); err != nil {
			return err
		}
		s.buf.WriteString("}\n")
		return nil
	}
	if c.out.as == "" && c.fromHub == nil {
		f := watchcache.JSON
		if c.out.format == formatProtobuf {
			f = watchcache.Protobuf
		}
		if d.Record.Size() >= watchcache.LargeSize {
			frame, back, err := c.store.AcquireFrame(*d, f)
			defer back()
			if err != nil {
				return err
			}
			return s.pass(frame)
		}
		frame, err := d.Frame(f, c.store)
		if err != nil {
			return err
		}
		s.buf.Write(frame)
		return nil
	}
	obj, err := c.object(d.Record)
	if err != nil {
		return err
	}
	if rv := strconv.FormatInt(d.Revision, 10); obj.GetResourceVersion() != rv && d.Revision != 0 || c.out.as == "" {
		obj = copyOf(obj)
		if d.Revision != 0 {
			obj.SetResourceVersion(rv)
		}
	}
	return s.object(d.Type, obj)
}

// object adds a frame of an object that no other watcher shares.
func (s *stream) object(typ apiwatch.EventType, obj runtime.Object) error {
	c := s.c
	gvk := c.gvk
	if c.out.as != "" {
		view, viewKind, err := c.view(obj, !s.columns)
		if err != nil {
			return err
		}
		s.columns = true
		obj, gvk = view, viewKind
	}
	setKind(obj, gvk)
	return s.frame(typ, obj, output{format: c.out.format})
}

func (s *stream) frame(typ apiwatch.EventType, obj runtime.Object, out output) error {
	data, err := encode(out, obj, obj.GetObjectKind().GroupVersionKind())
	if err != nil {
		return err
	}
	if out.format != formatProtobuf {
		s.buf.WriteString(`{"type":"` + string(typ) + `","object":`)
		s.buf.Write(bytes.TrimSuffix(data, newline))
		s.buf.WriteString("}\n")
		return nil
	}
	event, err := (&metav1.WatchEvent{Type: string(typ), Object: runtime.RawExtension{Raw: data}}).Marshal()
	if err != nil {
		return err
	}
	s.buf.Write(binary.BigEndian.AppendUint32(nil, uint32(len(event))))
	s.buf.Write(event)
	return nil
}

// bookmark sends the client the resource version that it has reached.
func (s *stream) bookmark(revision int64, initialEnd bool) error {
	obj := s.c.res.New()
	obj.SetResourceVersion(strconv.FormatInt(revision, 10))
	if initialEnd {
		obj.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	return s.object(apiwatch.Bookmark, obj)
}

// fail ends the stream with an ERROR event.
func (s *stream) fail(err error) {
	status := statusOf(s.c.ctx, err)
	if s.frame(apiwatch.Error, status, output{format: s.c.out.format}) == nil {
		s.flush()
	}
}
