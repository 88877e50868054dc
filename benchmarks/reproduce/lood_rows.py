"""Rows of the LOOD table for searches and one-dimensional examples: figure, what, printed, ours."""

from __future__ import annotations

from benchmarks.reproduce.claims import NOT_RUN, Results
from benchmarks.reproduce.printed_lood import BY_STEP, NORMALIZED, SEARCHED, SINE

Row = tuple[str, str, str, str]


def rows_of_searches(results: Results) -> list[Row]:
    found = results.get("lood_searches")
    steps = ", ".join(map(str, BY_STEP["after"]))
    heads = [
        (
            "1, 14–19",
            f"one search from noise, depth {SEARCHED['depth']}: ends within 1 % of the record's KL",
            "a majority",
        ),
        ("1b", "searches that end lower: the record left out has the likest details of all", "looks alike"),
        ("1c", "KL of the prediction at the record from that at the query", "similar"),
        ("9", f"KL over the record's after {steps} steps, fully connected of depth {BY_STEP['depth']}", "rises to it"),
        ("8a", "best of the starts: KL over the record's, and AUC", "similar"),
        ("8b", f"two runs of a CNN of depth {BY_STEP['depth']}: KL over the record's, and AUC", "similar"),
        (
            "10",
            f"two runs with normalized records, CNN of depth {NORMALIZED['depth']}, begun at the record",
            "above 1, darker",
        ),
    ]
    if found is None:
        return [(*head, NOT_RUN) for head in heads]
    ends, climbed, convolved, normal = (
        found[name] for name in ("cars_and_planes", "by_step", "convolutional", "normalized")
    )
    lower, alike = ends["not_found"], ends["prediction_kl"]
    came = ends["prediction_kl_of_found"]
    of_those = "" if came is None else f"; median {came[2]:.1g} of the searches that came to the record"
    after = climbed["share_of_own_kl_after"]
    last = after[str(climbed["steps"])]
    pairs = zip(
        convolved["share_of_own_kl"], convolved["auc_at_the_record"], convolved["auc_at_the_query"], strict=True
    )
    changed = (normal[name] for name in ("over_the_record", "brighter_by_pixel_values", "contrast_over_the_records"))
    ours = [
        f"{ends['found']} of {ends['chosen']}; the record is the nearest of all {ends['records']:,} for "
        f"{ends['nearest_of_all_records']}",
        f"{lower['record_has_the_likest_details_of_all']} of {lower['searches']}, {lower['of_those_negative']} of them "
        "as a negative",
        f"median {alike[2]:.2g}, quarters at {alike[1]:.1g} and {alike[3]:.2g}{of_those}",
        f"medians {', '.join(f'{after[str(k)][1]:.3g}' for k in BY_STEP['after'])}; {last[1]:.4f} "
        f"after {climbed['steps']} ({climbed['chosen']} records, the best of {climbed['starts']} starts each)",
        f"{last[0]:.4f} to {last[2]:.4f}; AUC "
        f"{climbed['auc_at_the_record'][1]:.4f} at the record in the median, lower by at most "
        f"{climbed['auc_lower_at_the_query'][2]:.1g} at the query; {climbed['starts_found']} of "
        f"{climbed['starts'] * climbed['chosen']} starts come within 1 %",
        "; ".join(f"{share:.4f}, AUC {record:.4f} at the record and {query:.4f}" for share, record, query in pairs)
        + f" (the best of {convolved['starts']} starts)",
        "; ".join(
            f"{share:.4f}, brighter by {bright:.2g} pixel values, {contrast:.2f} × the contrast"
            for share, bright, contrast in zip(*changed, strict=True)
        ).replace("-", "−"),
    ]
    return [(*head, cell) for head, cell in zip(heads, ours, strict=True)]


def rows_of_toys(results: Results) -> list[Row]:
    found = results.get("lood_toys")
    low, middle, high = (f"{place:g}" for place in SINE["placed"])
    heads = [
        ("2a", "sine, records in [−5, 5]: KL at all queries", "largest at the record"),
        ("11a", "sine: Algorithm 1's record S\\*", f"{SINE['steepest']}, one draw"),
        ("7, 11b", "sine: KL largest at S\\*, mean distance elsewhere", "one draw"),
        ("7", "sine, where the mean distance is largest: log ratio of variances and KL over those at S\\*", "lower"),
        ("12", f"sine, S at −{high} and {high}: mean distance largest", "about at S"),
        ("12", f"sine, S at {middle}: mean distance largest", "elsewhere, and very small"),
    ]
    if found is None:
        return [(*head, NOT_RUN) for head in heads]
    domain, steepest, placed = found["domain"], found["steepest"], found["placed"]
    ratio, kl = (steepest["at_the_mean_optimum_over_the_record"][name] for name in ("log_ratio", "kl"))
    far = min(placed[place]["largest_mean_distance"][0] for place in (low, high))
    ours = [
        f"at the record in {domain['kl_largest_at_the_record']} of {domain['draws']} draws",
        f"\\|S\\*\\| from {steepest['steepest_between'][0]:g} to {steepest['steepest_between'][1]:g} in "
        f"{steepest['draws']} draws",
        f"{steepest['kl_largest_at_the_record']} and {steepest['mean_largest_elsewhere']} of {steepest['draws']} "
        f"draws, {steepest['mean_distance_median_offset']:.2f} from S\\* in the median",
        f"{ratio[1]:.2f} × ({ratio[0]:.2f} to {ratio[2]:.2f}) and {kl[1]:.2f} × ({kl[0]:.2f} to {kl[2]:.2f})",
        f"at most {placed[low]['offset_of_the_largest'][2]:g} and {placed[high]['offset_of_the_largest'][2]:g} from S "
        f"in {placed['draws']} draws",
        f"{placed[middle]['offset_of_the_largest'][1]:g} from S in the median, with at most "
        f"{placed[middle]['largest_mean_distance'][2]:.1g} (far from the records: {far:.2g} or more)",
    ]
    return [(*head, cell) for head, cell in zip(heads, ours, strict=True)]
