//! The published scores give the paper's numbers, and rliable's intervals.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::Scratch;
use report::{Report, Request, Rng, Settings, gather, variant_tables, write};
use serde_json::Value;

/// Everything, as a reader of `report.json` sees it.
fn report(agents: &[&str], replicates: usize) -> (Report, Value) {
    let settings = Settings { replicates, seed: 0, rng: Rng::Numpy };
    let report = Report::new(gather(&request(Vec::new(), agents)).unwrap(), settings).unwrap();
    let json = serde_json::to_value(&report).unwrap();
    (report, json)
}

fn assert_close(value: &Value, expected: f64) {
    let value = value.as_f64().unwrap();
    assert!((value - expected).abs() < 5e-7, "{value} is not {expected}");
}

fn assert_interval(estimate: &Value, expected: [f64; 2]) {
    assert_close(&estimate["interval"][0], expected[0]);
    assert_close(&estimate["interval"][1], expected[1]);
}

// np.random.seed(0); rliable.library.get_interval_estimates({"IRIS": scores}, [mean, median, IQM, gap], reps=2000)
#[test]
fn iris_and_its_intervals() {
    let (_, json) = report(&["IRIS"], 2000);
    let aggregates = &json["agents"][0]["aggregates"];
    assert_close(&aggregates["mean"]["value"], 1.045907);
    assert_close(&aggregates["median"]["value"], 0.288800);
    assert_close(&aggregates["iqm"]["value"], 0.501155);
    assert_close(&aggregates["optimality_gap"]["value"], 0.511664);
    assert_interval(&aggregates["mean"], [0.969458, 1.125665]);
    assert_interval(&aggregates["median"], [0.248142, 0.412104]);
    assert_interval(&aggregates["iqm"], [0.443208, 0.567147]);
    assert_interval(&aggregates["optimality_gap"], [0.491546, 0.532960]);
    assert_eq!(json["agents"][0]["superhuman"], 10);
}

// The same for others; more runs, and another agent in front, change nothing.
#[test]
fn intervals_do_not_depend_on_who_else_is_there() {
    let (_, json) = report(&["IRIS", "DIAMOND", "spr"], 2000);
    let iris = &json["agents"][0]["aggregates"];
    assert_interval(&iris["iqm"], [0.443208, 0.567147]);
    let diamond = &json["agents"][1]["aggregates"];
    assert_interval(&diamond["mean"], [1.35777082, 1.57114712]);
    assert_interval(&diamond["median"], [0.30888828, 0.49143023]);
    let spr = &json["agents"][2]["aggregates"];
    assert_interval(&spr["iqm"], [0.3259736, 0.34804839]);
    assert_interval(&spr["optimality_gap"], [0.57039883, 0.5841111]);
}

// np.random.seed(0); rliable.library.create_performance_profile({"IRIS": scores}, np.linspace(0, 8, 201), reps=2000)
#[test]
fn profile_of_iris() {
    let (report, json) = report(&["IRIS"], 2000);
    assert_eq!((report.taus.len(), report.taus[0], report.taus[200]), (201, 0.0, 8.0));
    let expected = [
        (12, 0.43846154, [0.40769231, 0.46923077]),
        (25, 0.36923077, [0.33076923, 0.40769231]),
        (50, 0.17692308, [0.15384615, 0.2]),
        (100, 0.07692308, [0.06153846, 0.09230769]),
    ];
    for (index, value, interval) in expected {
        let estimate = &json["agents"][0]["profile"][index];
        assert_close(&estimate["value"], value);
        assert_interval(estimate, interval);
    }
}

// np.random.seed(0); rliable.library.get_interval_estimates({"": [iris, other]}, probability_of_improvement, reps=1000)
#[test]
fn improvement_of_iris() {
    let (_, json) = report(&["SimPLe", "SPR", "IRIS"], 1000);
    assert_eq!(json["improvement"]["subject"], "IRIS");
    let over = &json["improvement"]["over"];
    assert_close(&over[0]["probability"]["value"], 0.74923077);
    assert_interval(&over[0]["probability"], [0.69536538, 0.79923077]);
    assert_close(&over[1]["probability"]["value"], 0.59584615);
    assert_interval(&over[1]["probability"], [0.56071635, 0.63058846]);
}

/// Table 1 of the paper.
const PAPER: &str = "\
Alien 227.8 7127.7 530.0 808.5 616.9 711.0 865.2 841.9 420.0
Amidar 5.8 1719.5 38.8 148.6 74.3 113.7 137.8 179.7 143.0
Assault 222.4 742.0 500.1 1263.1 527.2 500.9 579.6 565.6 1524.4
Asterix 210.0 8503.3 1734.0 25557.8 1128.3 567.2 763.6 962.5 853.6
BankHeist 14.2 753.1 192.5 351.0 34.2 65.3 232.9 345.4 53.1
BattleZone 2360.0 37187.5 7687.5 13871.2 4031.2 8997.8 10165.3 14834.1 13074.0
Boxing 0.1 12.1 15.1 52.7 7.8 0.9 9.0 35.7 70.1
Breakout 1.7 30.5 48.0 414.1 16.4 2.6 19.8 19.6 83.7
ChopperCommand 811.0 7387.8 1350.0 1117.3 979.4 783.5 844.6 946.3 1565.0
CrazyClimber 10780.5 35829.4 56937.0 83940.2 62583.6 9154.4 21539.0 36700.5 59324.2
DemonAttack 152.1 1971.0 3527.0 13003.9 208.1 646.5 1321.5 517.6 2034.4
Freeway 0.0 29.6 21.8 21.8 16.7 28.3 20.3 19.3 31.1
Frostbite 65.2 4334.7 255.0 296.3 236.9 1226.5 1014.2 1170.7 259.1
Gopher 257.6 2412.5 1256.0 3260.3 596.8 400.9 621.6 660.6 2236.1
Hero 1027.0 30826.4 3095.0 9315.9 2656.6 4987.7 4167.9 5858.6 7037.4
Jamesbond 29.0 302.8 87.5 517.0 100.5 331.0 349.1 366.5 462.7
Kangaroo 52.0 3035.0 62.5 724.1 51.2 740.2 1088.4 3617.4 838.2
Krull 1598.0 2665.5 4890.8 5663.3 2204.8 3049.2 4402.1 3681.6 6616.4
KungFuMaster 258.5 22736.3 18813.0 30944.8 14862.5 8155.6 11467.4 14783.2 21759.8
MsPacman 307.3 6951.6 1265.6 1281.2 1480.0 1064.0 1218.1 1318.4 999.1
Pong -20.7 14.6 -6.7 20.1 12.8 -18.5 -9.1 -5.4 14.6
PrivateEye 24.9 69571.3 56.3 96.7 35.0 81.9 3.5 86.0 100.0
Qbert 163.9 13455.0 3952.0 13781.9 1288.8 727.0 1810.7 866.3 745.7
RoadRunner 11.5 7845.0 2500.0 17751.3 5640.6 5006.1 11211.4 12213.1 9614.6
Seaquest 68.4 42054.7 208.0 1100.2 683.3 315.2 352.3 558.1 661.3
UpNDown 533.4 11693.2 2896.9 17264.2 3350.3 2646.4 4324.5 10859.2 3546.2
#Superhuman 0 N/A 5 14 1 2 3 6 10
Mean 0.000 1.000 0.562 1.943 0.332 0.261 0.465 0.616 1.046
Median 0.000 1.000 0.227 1.090 0.134 0.092 0.313 0.396 0.289
IQM 0.000 1.000 N/A N/A 0.130 0.113 0.280 0.337 0.501
Optimality gap 1.000 0.000 N/A N/A 0.729 0.768 0.631 0.577 0.512
";

#[test]
fn the_papers_table_and_its_marks() {
    let request = Request {
        inputs: Vec::new(),
        agents: None,
        name: "ours".to_string(),
        references: None,
        variants: Vec::new(),
        built_in: Vec::new(),
    };
    let settings = Settings { replicates: 1, seed: 0, rng: Rng::Fast };
    let report = Report::new(gather(&request).unwrap(), settings).unwrap();
    let words = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<String>>();
    let printed = report::terminal(&report, false);
    let mut lines = printed.lines();
    let head = "Game Random Human MuZero EfficientZero SimPLe CURL DrQ SPR IRIS";
    assert_eq!(words(lines.next().unwrap()), words(head));
    for expected in PAPER.lines() {
        assert_eq!(words(lines.next().unwrap()), words(expected));
    }
    let scratch = Scratch::new("paper");
    write(&report, &scratch.0).unwrap();
    let markdown = std::fs::read_to_string(scratch.0.join("table.md")).unwrap();
    let latex = std::fs::read_to_string(scratch.0.join("table.tex")).unwrap();
    let groups = "|  |  |  | Lookahead search |  | No lookahead search |  |  |  |  |\n";
    assert!(markdown.starts_with(groups), "{markdown}");
    assert!(markdown.contains(
        "\n| Game | Random | Human | MuZero | EfficientZero | SimPLe | CURL | DrQ | SPR | IRIS |\n"
    ));
    let groups = "& \\multicolumn{2}{c}{} & \\multicolumn{2}{c}{Lookahead search} & \\multicolumn{5}{c}{No lookahead search} \\\\\n\
                  \\cmidrule(lr){4-5}\\cmidrule(lr){6-10}\nGame & Random & ";
    assert!(latex.contains(groups), "{latex}");
    assert!(
        markdown.contains(
            "| Breakout | 1.7 | 30.5 | 48.0 | <u>414.1</u> | 16.4 | 2.6 | 19.8 | 19.6 | **83.7** |"
        )
    );
    assert!(
        markdown.contains("| Boxing | 0.1 | 12.1 | 15.1 | 52.7 | 7.8 | 0.9 | 9.0 | 35.7 | <u>**70.1**</u> |")
    );
    assert!(latex.contains("Pong & $-20.7$ & 14.6 & $-6.7$ & \\underline{20.1} & 12.8 & $-18.5$ & $-9.1$ & $-5.4$ & \\textbf{14.6} \\\\"));
    assert!(latex.contains("Optimality gap ($\\downarrow$) & 1.000 & 0.000 & N/A & N/A & 0.729 & 0.768 & 0.631 & 0.577 & \\underline{\\textbf{0.512}} \\\\"));
}

/// "+70% mean, +49% IQM, +11% optimality gap, +67% superhuman games" over SPR, as the paper says.
#[test]
fn gains_over_the_baselines() {
    let (report, json) = report(&["MuZero", "SPR", "IRIS"], 1);
    let over = &json["improvement"]["over"];
    let spr = &over[1]["gains"];
    for (gain, expected) in [
        (&spr["aggregates"]["mean"], 0.6980),
        (&spr["aggregates"]["iqm"], 0.4887),
        (&spr["aggregates"]["optimality_gap"], 0.1137),
        (&spr["superhuman"], 0.6667),
    ] {
        assert!((gain.as_f64().unwrap() - expected).abs() < 5e-4, "{gain} {expected}");
    }
    // Published as means, so without a gain in what is over runs.
    let muzero = &over[0]["gains"]["aggregates"];
    assert!(muzero["iqm"].is_null() && muzero["optimality_gap"].is_null() && muzero["mean"].is_f64());
    let printed = report::terminal(&report, false);
    let line = printed.lines().find(|line| line.starts_with("SPR") && line.contains('%')).unwrap();
    assert!(line.split_whitespace().eq(["SPR", "+70%", "-27%", "+49%", "+11%", "+67%"]), "{line}");
}

fn request(inputs: Vec<std::path::PathBuf>, agents: &[&str]) -> Request {
    let agents = Some(agents.iter().map(|name| name.to_string()).collect());
    Request {
        inputs,
        agents,
        name: "ours".to_string(),
        references: None,
        variants: Vec::new(),
        built_in: Vec::new(),
    }
}

#[test]
fn tables_7_and_8() {
    let tables = variant_tables(&gather(&request(Vec::new(), &["IRIS"])).unwrap()).unwrap();
    let words = |text: &str| {
        text.lines()
            .map(|line| line.split_whitespace().map(String::from).collect())
            .collect::<Vec<Vec<String>>>()
    };
    let expected = "Game IRIS IRIS-64 Change\nAlien 420.0 570.0 +36%\nAsterix 853.6 1890.4 +121%\nBankHeist 53.1 282.5 +432%";
    assert_eq!(words(&tables[0].text()), words(expected));
    assert_eq!((tables[0].has_games, tables[1].has_games, tables[1].variant), (true, false, "IRIS-10M"));
    let expected = "Game IRIS IRIS-10M Change\n#Superhuman 10 15 +50%\nMean 1.046 7.488 +616%\nMedian 0.289 1.207 +318%\nIQM 0.501 2.239 +347%\nOptimality gap 0.512 0.282 -45%";
    assert_eq!(words(&tables[1].text()), words(expected));

    // Scores of the 10M variant come from a file. (Not the paper's: twice the human's in two games.)
    let scratch = Scratch::new("variants");
    let file = scratch.0.join("IRIS-10M.json");
    std::fs::write(&file, r#"{"Pong": [49.9], "Alien": [14027.6]}"#).unwrap();
    let tables = variant_tables(&gather(&request(vec![file], &["none"])).unwrap()).unwrap();
    let printed = words(&tables[1].text());
    assert_eq!(printed[1], ["Alien", "420.0", "14027.6", "+3240%"]);
    assert_eq!(printed[3], ["#Superhuman", "1", "2", "+100%"]);
    assert_eq!(printed[4][2], "2.000");
}

/// Three games are no benchmark: `all` leaves the 64-token variant out, its name shows it.
#[test]
fn the_64_token_variant_is_asked_for_by_name() {
    let names = |agents: &[&str]| {
        let gathered = gather(&request(Vec::new(), agents)).unwrap();
        gathered.agents.into_iter().map(|agent| agent.name).collect::<Vec<String>>()
    };
    assert_eq!(names(&["iris-64", "IRIS"]), ["IRIS-64", "IRIS"]);
    let all = names(&["all"]);
    assert!(all.len() == 13 && !all.contains(&"IRIS-64".to_string()), "{all:?}");
    let (_, json) = report(&["IRIS-64"], 1);
    assert_eq!(json["agents"][0]["games"]["BankHeist"]["mean"], 282.5);
    assert_eq!(json["games"].as_array().unwrap().len(), 3);
}

#[test]
fn unknown_agents_are_named() {
    let request = Request {
        inputs: Vec::new(),
        agents: Some(vec!["Dreamer".to_string()]),
        name: "ours".to_string(),
        references: None,
        variants: Vec::new(),
        built_in: Vec::new(),
    };
    let error = gather(&request).err().unwrap().to_string();
    assert!(
        error.starts_with("no published agent is called Dreamer; there are MuZero, EfficientZero,"),
        "{error}"
    );
}
