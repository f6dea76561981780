package ingress

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"knarr/addons/gateway/route"
	"knarr/internal/references"
)

// settings are what the annotations of one Ingress ask for.
type settings struct {
	// closed says why nobody is let in: something was asked for that keeps clients out,
	// and it cannot be done.
	closed string

	rewrite, appRoot, vhost, prefix string
	regexps                         bool
	sslRedirect                     bool
	forceSSL                        bool
	permanent, temporal             string
	permanentCode, temporalCode     int
	www, passthrough, clusterIP     bool
	aliases                         []string
	bodyLimit                       int64
	buffer, noAccessLog             bool
	access                          route.Access
	cors                            corsSettings
	session                         *route.Session
	sticky                          bool
	expires                         time.Duration
	limit                           limitSettings
	auth                            authSettings
	clients                         clientSettings
	backend                         route.Backend
	verify, nameGiven               bool
	proxySecret                     string
	retry                           route.Retry
	tries                           int
	errorCodes                      []int
	defaultBackend, headers, mirror string
	canary                          canarySettings
	http3, acme                     bool
}

type authSettings struct {
	kind, secret, secretType, realm string
	url, method, signIn, parameter  string
	responseHeaders                 []string
}

type clientSettings struct {
	secret, verify string
	pass           bool
}

type limitSettings struct {
	perSecond, perMinute, connections, multiplier int
	exempt                                        []netip.Prefix
}

type corsSettings struct {
	on bool
	route.CORS
}

type canarySettings struct {
	on                             bool
	header, value, pattern, cookie string
	weight, total                  int
}

// usualCORS is what ingress-nginx does where annotations do not say.
var usualCORS = route.CORS{
	Origins: []string{"*"}, Methods: []string{"GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"},
	Headers:     []string{"DNT", "Keep-Alive", "User-Agent", "X-Requested-With", "If-Modified-Since", "Cache-Control", "Content-Type", "Range", "Authorization"},
	Credentials: true, MaxAge: 1728000 * time.Second,
}

// read takes over the annotations, in the order of their names.
func (s *subject) read(c *compilation) {
	s.want = &settings{
		sslRedirect: true, permanentCode: 301, temporalCode: 302, tries: 3,
		canary: canarySettings{total: 100}, limit: limitSettings{multiplier: 5}, auth: authSettings{parameter: "rd"},
		clients: clientSettings{verify: "on"}, cors: corsSettings{CORS: usualCORS},
	}
	var asked []string
	for name := range s.ing.Annotations {
		if short, ok := strings.CutPrefix(name, references.Prefix); ok {
			asked = append(asked, short)
		}
	}
	if v, ok := s.ing.Annotations[references.HTTP3Annotation]; ok {
		if err := boolean(&s.want.http3, strings.TrimSpace(v)); err != nil {
			s.fault("annotation %s is not followed: %v", references.HTTP3Annotation, err)
		}
		if s.want.http3 && len(s.ing.Spec.TLS) == 0 {
			s.fault("annotation %s is not followed: the Ingress has no TLS, by which alone HTTP/3 is spoken", references.HTTP3Annotation)
		}
	}
	if v, ok := s.ing.Annotations[references.ACMEAnnotation]; ok {
		switch s.want.acme = v == "true"; {
		case !s.want.acme && v != "false":
			s.fault("annotation %s is not followed: %q is neither true nor false", references.ACMEAnnotation, clipped(v))
		case s.want.acme && len(s.ing.Spec.TLS) == 0:
			s.fault("annotation %s is not followed: spec.tls names no Secret for a certificate", references.ACMEAnnotation)
		}
	}
	slices.Sort(asked)
	for _, name := range asked {
		s.annotation(name, strings.TrimSpace(s.ing.Annotations[references.Prefix+name]))
	}
}

// maxValue is the longest value of an annotation that is read.
const maxValue = 64 << 10

func (s *subject) annotation(name, value string) {
	a, known := Annotations[name]
	switch {
	case !known:
		s.fault("annotation %s%s is not known here", references.Prefix, clipped(name))
	case a.Usual != "" && slices.Contains(strings.Split(a.Usual, "|"), value):
	case len(value) > maxValue:
		s.refuse(name, a, errors.New("it is longer than 64 KiB"))
	case a.Kind == Tuning:
		s.note(Fault{false, fmt.Sprintf("annotation %s%s has no counterpart here: %s", references.Prefix, name, a.Note)})
	case a.Kind == Refused:
		s.refuse(name, a, errors.New(a.Note))
	case a.Kind == Unserved:
		s.fault("annotation %s%s is not served: %s", references.Prefix, name, a.Note)
	default:
		if err := a.read(s.want, value); err != nil {
			s.refuse(name, a, err)
		}
	}
}

// refuse notes why an annotation is not followed. Where it would have kept clients out,
// nobody is let in without it.
func (s *subject) refuse(name string, a Annotation, err error) {
	if !a.Guard {
		s.fault("annotation %s%s is not followed: %v", references.Prefix, name, err)
		return
	}
	s.close("annotation %s%s cannot be followed, so that every request is answered with 503: %v", references.Prefix, name, err)
}

func (s *subject) close(format string, args ...any) {
	s.fault(format, args...)
	s.want.closed = "refused"
}

func clipped(text string) string {
	const most = 100
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
