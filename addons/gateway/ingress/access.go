package ingress

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/addons/gateway/route"
	"knarr/internal/references"
)

func localName(s *subject, value string) (string, bool) { return references.Local(s.ing, value) }

// authenticate is what is asked of clients; nil if nothing is.
func (c *compilation) authenticate(s *subject) *route.Auth {
	w, auth, any := s.want, route.Auth{}, false
	if w.auth.kind != "" {
		any = true
		users, err := c.users(s)
		if err != nil {
			s.close("annotation auth-secret cannot be followed, so that every request is answered with 503: %v", err)
		}
		if auth.Users, auth.Realm = users, w.auth.realm; auth.Realm == "" {
			auth.Realm = "Authentication Required"
		}
	}
	if w.auth.url != "" {
		any = true
		if err := c.external(s, &auth); err != nil {
			s.close("annotation auth-url cannot be followed, so that every request is answered with 503: %v", err)
		}
	}
	if w.clients.secret != "" && w.clients.verify != "off" {
		any = true
		secret, err := c.secret(s, w.clients.secret)
		if err == nil {
			auth.ClientCAs, err = c.Parsed.Authorities(secret)
		}
		if err != nil {
			s.close("annotation auth-tls-secret cannot be followed, so that every request is answered with 503: %v", err)
		}
		auth.ClientOptional, auth.PassCertificate = w.clients.verify == "optional", w.clients.pass
	}
	if !any {
		return nil
	}
	return &auth
}

// external is another server that says whether a client may pass.
func (c *compilation) external(s *subject, auth *route.Auth) error {
	w := &s.want.auth
	u, err := url.Parse(strings.NewReplacer("$host", "host.invalid", "$scheme", "https").Replace(w.url))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("%q is no URL", clipped(w.url))
	}
	if err := c.outside(u); err != nil {
		return err
	}
	if name, port, ok := c.inside(u); ok {
		if err := c.permitted(s, name); err != nil {
			return err
		}
		as := route.Backend{}
		if u.Scheme == "https" {
			as.Protocol = route.BackendHTTPS
		}
		if auth.Backend, err = c.service(name, port, as, s); err != nil {
			return err
		}
	}
	auth.URL, auth.Method, auth.ResponseHeaders = w.url, w.method, w.responseHeaders
	if w.signIn != "" {
		auth.SignIn = w.signIn
		if !strings.Contains(w.signIn, "rd=") && !strings.Contains(w.signIn, w.parameter+"=") {
			join := "?"
			if strings.Contains(w.signIn, "?") {
				join = "&"
			}
			auth.SignIn += join + url.QueryEscape(w.parameter) + "=$scheme://$host$escaped_request_uri"
		}
	}
	return nil
}

// maxUsers bounds the users of a Secret.
const maxUsers = 10000

// users are those of the Secret that auth-secret names, with their hashed passwords.
func (c *compilation) users(s *subject) (map[string]string, error) {
	if s.want.auth.secret == "" {
		return nil, errors.New("it is missing")
	}
	secret, err := c.secret(s, s.want.auth.secret)
	if err != nil {
		return nil, err
	}
	key := s.want.auth.secretType + "/" + revision(secret)
	u, ok := c.Parsed.users[key]
	if !ok {
		u = &users{}
		u.users, u.err = readUsers(secret, s.want.auth.secretType)
		c.Parsed.users[key] = u
	}
	c.Parsed.used(&u.use)
	return u.users, u.err
}

func readUsers(secret *corev1.Secret, kind string) (map[string]string, error) {
	found := map[string]string{}
	add := func(name, hash string) error {
		if len(found) == maxUsers {
			return fmt.Errorf("Secret %q has more than %d users", secret.Name, maxUsers)
		}
		if _, again := found[name]; name != "" && hash != "" && !again {
			found[name] = hash
		}
		return nil
	}
	if kind == "auth-map" {
		for name, hash := range secret.Data {
			if err := add(name, strings.TrimSpace(string(hash))); err != nil {
				return nil, err
			}
		}
	} else {
		for lines := bufio.NewScanner(bytes.NewReader(secret.Data["auth"])); lines.Scan(); {
			name, hash, _ := strings.Cut(strings.TrimSpace(lines.Text()), ":")
			if err := add(name, hash); err != nil {
				return nil, err
			}
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("Secret %q has no users: a file in the form of htpasswd is expected under the key auth", secret.Name)
	}
	return found, nil
}

// limits is what one client may ask for.
func (s *subject) limits() *route.Limit {
	l := &s.want.limit
	if l.perSecond == 0 && l.perMinute == 0 && l.connections == 0 {
		return nil
	}
	limit := &route.Limit{Connections: l.connections, Exempt: l.exempt}
	for _, one := range []struct {
		requests int
		in       time.Duration
	}{{l.perMinute, time.Minute}, {l.perSecond, time.Second}} {
		if r := rate(one.requests, one.in); one.requests > 0 && (limit.Rate == 0 || r < limit.Rate) {
			limit.Rate, limit.Burst = r, max(one.requests*l.multiplier, 1)
		}
	}
	if l.perSecond > 0 && l.perMinute > 0 {
		s.fault("annotations limit-rps and limit-rpm: the lower of both rates is held, with its burst")
	}
	return limit
}

// maxHeaders bounds the headers of a ConfigMap.
const maxHeaders = 100

// customHeaders are what answers get.
func (c *compilation) customHeaders(s *subject) *route.Headers {
	if s.want.headers == "" {
		return nil
	}
	name, ok := localName(s, s.want.headers)
	if !ok {
		s.fault("annotation custom-headers is not followed: %q is not in the Ingress' namespace", clipped(s.want.headers))
		return nil
	}
	m := c.ConfigMap(types.NamespacedName{Namespace: s.name.Namespace, Name: name})
	if m == nil {
		s.fault("annotation custom-headers is not followed: ConfigMap %q %s", name, c.missing(s, "configmaps", name))
		return nil
	}
	var all route.Headers
	for name, value := range m.Data {
		var checked string
		if !token(name) || text(&checked, strings.TrimSpace(value)) != nil || len(all.Set) == maxHeaders {
			s.fault("ConfigMap %q: %q is no header", m.Name, clipped(name))
			continue
		}
		all.Set = append(all.Set, route.Header{Name: name, Value: checked})
	}
	slices.SortFunc(all.Set, func(a, b route.Header) int { return strings.Compare(a.Name, b.Name) })
	return &all
}
