package acme

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/acme"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// An Authority gives certificates.
type Authority interface {
	// Thumbprint is that of the account's key. The account is made when it is first needed.
	Thumbprint(ctx context.Context) (string, error)
	// Issue orders a certificate. It returns the chain and the key as PEM.
	Issue(ctx context.Context, hosts []string) (chain, key []byte, err error)
}

// A Keeper keeps certificates.
type Keeper interface {
	// Have is a Secret as it is now, nil if there is none.
	Have(ctx context.Context, secret types.NamespacedName) (*corev1.Secret, error)
	Keep(ctx context.Context, secret types.NamespacedName, chain, key []byte) error
}

// Settings are what an Issuer works with.
type Settings struct {
	Authority Authority
	Keeper    Keeper
	// Private says that the authority may know names that are not public.
	Private bool
	// Event tells users of what happened to an object.
	Event func(of runtime.Object, kind, reason, text string)
	// Changed is called once the account is known.
	Changed func()
}

// An Issuer orders what is wanted, one after the other.
type Issuer struct {
	Settings
	wake chan struct{}

	mu         sync.Mutex
	wants      map[types.NamespacedName]*wanted
	thumbprint string
	orders     orders
}

// A wanted is what is known of a Want.
type wanted struct {
	Want
	hosts    string
	since    time.Time // that it asks for these hosts
	failures int
	next     time.Time // that it may be ordered
	refused  string    // the last event's text about what is refused
}

const (
	// settle is how long a Want must last before it is ordered: until then nodes learn of
	// the host and of the account, and users change their minds.
	settle = 5 * time.Second
	// seen is how long the watch of a Secret may take to show a change.
	seen = 10 * time.Second
	// orderTime bounds one order.
	orderTime = 3 * time.Minute
	// maxWants bounds those that are remembered, and maxWantsEach those of one namespace,
	// which must not crowd out all others.
	maxWants, maxWantsEach = 5000, 500
)

// NewIssuer starts nothing.
func NewIssuer(s Settings) *Issuer {
	return &Issuer{Settings: s, wake: make(chan struct{}, 1), wants: map[types.NamespacedName]*wanted{}}
}

// Thumbprint is that of the account's key, empty until there is one.
func (i *Issuer) Thumbprint() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.thumbprint
}

// Want replaces what is wanted. Of several for one Secret the first is.
func (i *Issuer) Want(all []Want) {
	i.mu.Lock()
	defer i.mu.Unlock()
	now := time.Now()
	before := i.wants
	i.wants = make(map[types.NamespacedName]*wanted, len(all))
	each := map[string]int{}
	for _, w := range all {
		if i.wants[w.Secret] != nil || len(i.wants) == maxWants || each[w.Secret.Namespace] == maxWantsEach {
			continue
		}
		each[w.Secret.Namespace]++
		hosts := strings.Join(w.Hosts, ",")
		old := before[w.Secret]
		if old == nil || old.hosts != hosts {
			old = &wanted{hosts: hosts, since: now}
		}
		old.Want = w
		i.wants[w.Secret] = old
		i.refuse(old, now)
	}
	select {
	case i.wake <- struct{}{}:
	default:
	}
}

// refuse tells once of what is not ordered. mu is held.
func (i *Issuer) refuse(w *wanted, now time.Time) {
	err := refusal(w.Hosts, i.Private)
	if err == nil {
		_, err = due(&w.Want, now)
	}
	text := ""
	if err != nil {
		text = fmt.Sprintf("No certificate is ordered for Secret %s: %v", w.Secret.Name, err)
	}
	if text != w.refused && text != "" {
		i.Event(w.Owner, corev1.EventTypeWarning, "CertificateRefused", text)
	}
	w.refused = text
}

// Run orders what is due until ctx ends.
func (i *Issuer) Run(ctx context.Context) {
	for ctx.Err() == nil {
		w, at := i.first(time.Now())
		if w == nil {
			select {
			case <-i.wake:
			case <-ctx.Done():
			}
			continue
		}
		timer := time.NewTimer(time.Until(at))
		select {
		case <-timer.C:
			i.order(ctx, w)
		case <-i.wake:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// first is what is to be ordered first, and when. The copy stays as it is.
func (i *Issuer) first(now time.Time) (first *wanted, at time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, w := range i.wants {
		if refusal(w.Hosts, i.Private) != nil {
			continue
		}
		when, err := due(&w.Want, now)
		if err != nil {
			continue
		}
		for _, not := range []time.Time{w.since.Add(settle), w.next, i.orders.next(w.Secret.Namespace, now)} {
			if when.Before(not) {
				when = not
			}
		}
		if first == nil || when.Before(at) || when.Equal(at) && w.Secret.String() < first.Secret.String() {
			first, at = w, when
		}
	}
	if first != nil {
		first = new(*first)
	}
	return first, at
}

// order orders one certificate and keeps it.
func (i *Issuer) order(ctx context.Context, w *wanted) {
	limited, cancel := context.WithTimeout(ctx, orderTime)
	defer cancel()
	if i.Thumbprint() == "" {
		thumbprint, err := i.Authority.Thumbprint(limited)
		if err != nil {
			i.failed(ctx, w, fmt.Errorf("the account: %w", err))
			return
		}
		i.mu.Lock()
		i.thumbprint = thumbprint
		for _, each := range i.wants { // once the nodes know it
			each.next = time.Now().Add(settle)
		}
		i.mu.Unlock()
		i.Changed()
		return
	}
	if needed, err := i.needed(limited, w); err != nil || !needed {
		if err != nil {
			i.failed(ctx, w, err)
		}
		return
	}
	i.mu.Lock()
	now := time.Now()
	i.orders = append(slices.DeleteFunc(i.orders, func(o order) bool { return now.Sub(o.at) >= time.Hour }), order{now, w.Secret.Namespace})
	i.mu.Unlock()
	chain, key, err := i.Authority.Issue(limited, w.Hosts)
	if err == nil {
		err = i.Keeper.Keep(limited, w.Secret, chain, key)
	}
	if err != nil {
		i.failed(ctx, w, err)
		return
	}
	i.mu.Lock()
	if now := i.wants[w.Secret]; now != nil {
		now.failures, now.next = 0, time.Now().Add(seen)
	}
	i.mu.Unlock()
	slog.InfoContext(ctx, "certificate issued", "secret", w.Secret, "hosts", w.hosts)
	i.Event(w.Owner, corev1.EventTypeNormal, "CertificateIssued", fmt.Sprintf("The certificate for %s is in Secret %s", short(w.hosts), w.Secret.Name))
}

// needed makes sure that a certificate is still to be ordered: a watch may be late, or have
// ended.
func (i *Issuer) needed(ctx context.Context, w *wanted) (bool, error) {
	have, err := i.Keeper.Have(ctx, w.Secret)
	if err != nil {
		return false, fmt.Errorf("read Secret %s: %w", w.Secret, err)
	}
	want, now := w.Want, time.Now()
	want.Have = have
	at, err := due(&want, now)
	if err == nil && !at.After(now) {
		return true, nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if of := i.wants[w.Secret]; of != nil {
		of.next = now.Add(seen)
	}
	return false, nil
}

// failed says why, and when it is tried again.
func (i *Issuer) failed(ctx context.Context, w *wanted, err error) {
	if ctx.Err() != nil {
		return
	}
	i.mu.Lock()
	wait := after(w.failures + 1)
	if asked, limited := acme.RateLimit(err); limited && asked > wait {
		wait = min(asked, 24*time.Hour)
	}
	if now := i.wants[w.Secret]; now != nil && now.hosts == w.hosts {
		now.failures++
		now.next = time.Now().Add(wait)
	}
	i.mu.Unlock()
	slog.WarnContext(ctx, "certificate not issued", "secret", w.Secret, "hosts", w.hosts, "err", err)
	i.Event(w.Owner, corev1.EventTypeWarning, "CertificateFailed", fmt.Sprintf("No certificate for %s, tried again in %s: %s", short(w.hosts), wait.Round(time.Minute), short(reason(err))))
}

// short bounds what an event says.
func short(text string) string {
	const most = 400
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
