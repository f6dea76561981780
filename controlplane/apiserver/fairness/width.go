package fairness

import (
	"math"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"knarr/controlplane/apiserver/request"
	"knarr/controlplane/apiserver/watchcache"
)

// How much of the server's work a seat stands for: upstream's figures.
const (
	bytesPerSeat   = 100_000
	streamedBytes  = 1_000_000 // what a list from the cache holds at once
	mostListSeats  = 100
	mostWriteSeats = 10
	watchesPerSeat = 10
	perSeat        = 5 * time.Millisecond // that telling the watchers of a write takes
)

// Beyond longBytes a list takes a seat more for each longBytesPerSeat: upstream's
// figures alone let fifty lists of 120 MB begin, and few end in time.
const (
	longBytes        = 16_000_000
	longBytesPerSeat = 16 * bytesPerSeat
)

// A width is how many seats a request takes, and for how long after its answer:
// a write keeps the server busy with those who watch.
type width struct {
	seats int
	after time.Duration
}

// widest is the most seats that a level of p gives to one request.
func (p *portion) widest() int {
	if p.queuing == nil {
		return math.MaxInt32
	}
	return max(1, min(int(math.Ceil(0.15*float64(p.nominal))), p.nominal/int(p.queuing.HandSize)))
}

// widest is the most seats that the level gives to one request, at most most. It
// takes no lock: requests ask before they enter.
func (l *level) widest(most int) int { return min(int(l.widestSeats.Load()), most) }

// width estimates what a request costs.
func (d *Dispatcher) width(l *level, info *request.Info, query string) width {
	if !info.IsResource {
		return width{seats: 1}
	}
	switch info.Verb {
	case "list", "watch":
		if r := d.stored(info); r != nil {
			return width{seats: listSeats(r.Len(), r.Size(), info, query, l.widest(mostListSeats))}
		}
	case "create", "update", "patch", "delete":
		if info.Resource == "serviceaccounts" && info.Subresource == "token" {
			break // nobody is told
		}
		if r := d.stored(info); r != nil {
			if n := r.Watching(info.Namespace, info.Name); n >= watchesPerSeat {
				return writeWidth(n, l.widest(mostWriteSeats))
			}
		}
	}
	return width{seats: 1}
}

// memo remembers where the objects of built-in resources are: to find them by
// three names costs as much as half of the rest.
type memo [64]atomic.Pointer[place]

type place struct {
	group, version, resource string
	objects                  *watchcache.Resource
}

func (d *Dispatcher) stored(info *request.Info) *watchcache.Resource {
	name := info.Resource
	if name == "" {
		return nil
	}
	slot := &d.places[(len(name)+7*int(name[0])+31*int(name[len(name)-1]))%len(d.places)]
	if p := slot.Load(); p != nil && p.resource == name && p.group == info.Group && p.version == info.Version {
		return p.objects
	}
	if r := d.cache.Resource(info.GroupVersion().WithResource(name)); r != nil {
		slot.Store(&place{info.Group, info.Version, name, r})
		return r
	}
	if info.Group == "" {
		return nil
	}
	return d.cache.At(info.Group + "/" + name)
}

// listSeats are those of a list, or a watch that starts with one, of so many
// objects that are so long together. The query is read only of long ones.
func listSeats(objects int, size int64, info *request.Info, query string, most int) int {
	if size <= bytesPerSeat || info.Name != "" {
		return 1
	}
	q, err := url.ParseQuery(query)
	if err != nil {
		return most
	}
	if info.Verb == "watch" {
		initial := q.Get("sendInitialEvents")
		if rv := q.Get("resourceVersion"); rv != "" && rv != "0" && (initial == "" || initial == "false" || initial == "0") {
			return 1
		}
	}
	if limit, err := strconv.Atoi(q.Get("limit")); err == nil && limit > 0 && limit < objects {
		size = size / int64(objects) * int64(limit)
	}
	long := max(0, size-longBytes) / longBytesPerSeat
	size = min(size, streamedBytes)
	return max(1, min(most, int((size+bytesPerSeat-1)/bytesPerSeat+long)))
}

func writeWidth(watches, most int) width {
	want := (watches + watchesPerSeat - 1) / watchesPerSeat
	seats := min(want, most)
	return width{seats, time.Duration(want) * perSeat / time.Duration(seats)}
}
