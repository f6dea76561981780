package cronjob

import (
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
)

func TestLatest(t *testing.T) {
	at := func(s string) time.Time {
		v, err := time.Parse(time.DateTime, s)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, c := range []struct {
		schedule, last, now string
		deadline            *int64
		want                string
		missed              int64
	}{
		{"0 * * * *", "2026-01-01 00:00:00", "2026-01-01 00:59:59", nil, "", 0},
		{"0 * * * *", "2026-01-01 00:00:00", "2026-01-01 01:00:00", nil, "2026-01-01 01:00:00", 1},
		{"0 * * * *", "2026-01-01 00:00:00", "2026-01-02 01:30:00", nil, "2026-01-02 01:00:00", 25},
		{"*/1 * * * *", "2020-01-01 00:00:00", "2026-01-01 00:00:30", nil, "2026-01-01 00:00:00", 3156480},
		{"*/1 * * * *", "0002-01-01 00:00:00", "2026-01-01 00:00:30", nil, "2026-01-01 00:00:00", 52596000},
		{"0 * * * *", "2026-01-01 00:00:00", "2026-01-02 01:30:00", new(int64(60)), "", 0},
		{"0 9 * * 1-5", "2026-01-02 09:00:00", "2026-01-05 10:00:00", nil, "2026-01-05 09:00:00", 1},
	} {
		cron := &batchv1.CronJob{Spec: batchv1.CronJobSpec{Schedule: c.schedule, StartingDeadlineSeconds: c.deadline},
			Status: batchv1.CronJobStatus{LastScheduleTime: &metav1.Time{Time: at(c.last)}}}
		schedule, err := parse(cron)
		if err != nil {
			t.Fatal(err)
		}
		due, missed, err := latest(cron, schedule, at(c.now))
		if err != nil {
			t.Errorf("%s: %v", c.schedule, err)
		}
		got := ""
		if !due.IsZero() {
			got = due.Format(time.DateTime)
		}
		if got != c.want || missed != c.missed {
			t.Errorf("%s since %s at %s: got %s, %d missed; want %s, %d", c.schedule, c.last, c.now, got, missed, c.want, c.missed)
		}
	}
	if _, err := parse(&batchv1.CronJob{Spec: batchv1.CronJobSpec{Schedule: "TZ=0"}}); err == nil {
		t.Error("a time zone alone is accepted")
	}
}

// TestEvents: what a user is told of a schedule, in upstream's words.
func TestEvents(t *testing.T) {
	const unsupported = "Warning UnsupportedSchedule CRON_TZ or TZ used in schedule %q is not officially supported, " +
		"see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details"
	for schedule, want := range map[string]string{
		"0 0 1 1 *":          "",
		"TZ=UTC 0 0 1 1 *":   fmt.Sprintf(unsupported, "TZ=UTC 0 0 1 1 *"),
		"59 23 31 2 *":       "Warning InvalidSchedule invalid schedule: 59 23 31 2 * : time difference between two schedules is less than 1 second",
		"every now and then": `Warning UnparseableSchedule unparseable schedule: "every now and then" : expected exactly 5 fields, found 4: [every now and then]`,
	} {
		events := record.NewFakeRecorder(4)
		now := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
		cron := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now)}, Spec: batchv1.CronJobSpec{Schedule: schedule}}
		r := &reconciler{events: events}
		if _, err := r.start(t.Context(), cache.ObjectName{}, cron, now); err != nil {
			t.Errorf("%s: %v", schedule, err)
		}
		got := ""
		select {
		case got = <-events.Events:
		default:
		}
		if got != want || len(events.Events) > 0 {
			t.Errorf("%s: %q, want %q", schedule, got, want)
		}
	}
}
