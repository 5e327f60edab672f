"""The wordings of the arithmetic problems, each group with the formula of its answer."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction


class Values(dict[str, Fraction]):
    """The numbers drawn for one problem, read as attributes by its formula."""

    def __getattr__(self, name: str) -> Fraction:
        """Return the number drawn for `name`."""
        return self[name]


@dataclass(frozen=True, slots=True)
class Template:
    """One formula, the decimals its answer may have, and the wordings that ask for it."""

    kind: str
    spec: str
    places: int
    formula: Callable[[Values], Fraction] | None
    texts: tuple[str, ...]


def group(
    kind: str, spec: str, places: int, formula: Callable[[Values], Fraction] | None, *texts: str
) -> Template:
    """Collect the wordings of one formula."""
    return Template(kind, spec, places, formula, texts)


# fmt: off
TEMPLATES = [
    group("addition", "a=23..96 b=14..88", 0, lambda v: v.a + v.b,
        "{name} has {a} {things} and buys {b} more. How many {things} does {she} have now?",
        "A shelf holds {a} novels and {b} biographies. How many books are on the shelf?",
        "{a} people visited the museum on Saturday and {b} on Sunday. How many visitors came over "
        "the weekend?",
        "{name} planted {a} tulips and {other} planted {b}. How many did they plant together?",
        "A train left {town} with {a} passengers, and {b} more got on at the next stop. How many "
        "passengers were on the train then?",
        "{name} scored {a} points in the first half of the game and {b} in the second. What was "
        "{her} total score?"),
    group("addition", "a=12..60 b=12..60 c=12..60", 0, lambda v: v.a + v.b + v.c,
        "{name} read {a} pages on Monday, {b} on Tuesday and {c} on Wednesday. How many pages did "
        "{she} read in all?",
        "A farm keeps {a} cows, {b} sheep and {c} goats. How many animals live there?"),
    group("addition", "a=1.2..9.8/0.1 b=1.2..9.8/0.1", 1, lambda v: v.a + v.b,
        "{name} walked {a} km before lunch and {b} km after. How far did {she} walk altogether?"),
    group("subtraction", "a=70..150 b=11..49", 0, lambda v: v.a - v.b,
        "{name} had {a} {things} and gave {b} of them to {other}. How many {things} does {name} "
        "have left?",
        "A theatre has {a} seats, and {b} of them are taken. How many seats are empty?",
        "{name}'s book has {a} pages, and {she} has read {b} of them. How many pages does {she} "
        "still have to read?",
        "A baker made {a} rolls and sold {b} before noon. How many rolls remained?",
        "There were {a} swallows on a wire. Then {b} flew away. How many stayed?",
        "A tank held {a} litres of water, but {b} litres leaked out overnight. How many litres "
        "were in it the next morning?",
        "{name} needs {a} {things} for a mosaic and has collected {b} so far. How many more does "
        "{she} need?"),
    group("subtraction", "a=140..199 b=95..129", 0, lambda v: v.a - v.b,
        "{name} is {a} cm tall and {her} little cousin is {b} cm tall. How much taller is {name}?"),
    group("subtraction", "a=6.2..9.9/0.1 b=1.1..4.8/0.1", 1, lambda v: v.a - v.b,
        "A plank {a} m long is shortened by {b} m. How long is it now, in metres?"),
    group("multiplication", "a=6..24 b=4..19", 0, lambda v: v.a * v.b,
        "Each box holds {a} pencils. How many pencils are in {b} boxes?",
        "A hall has {a} rows with {b} chairs in each row. How many chairs are there?",
        "{name} saves ${a} every week. How much money has {she} saved after {b} weeks?",
        "A rectangular garden is {a} m long and {b} m wide. What is its area in square metres?",
        "{a} teams enter a tournament, and every team brings {b} players. How many players come?",
        "{name} bakes {a} trays of {b} cookies. How many cookies does {she} bake?",
        "A mason lays {a} bricks an hour. How many bricks does he lay in {b} hours?",
        "A ticket to the zoo costs ${a}. What do {b} tickets cost?"),
    group("division", "a=96..480 b=3..16", 0, lambda v: v.a / v.b,
        "{name} shares {a} {things} equally among {b} friends. How many does each friend get?",
        "{a} pupils are split into teams of {b}. How many teams are there?",
        "A rope {a} m long is cut into pieces of {b} m. How many pieces are there?",
        "{name} packs {a} eggs into boxes of {b}. How many boxes does {she} fill?",
        "A book of {a} pages has {b} chapters of the same length. How many pages are in a chapter?",
        "{b} friends split a bill of ${a} evenly. How much does each of them pay?",
        "{name} reads {b} pages a day. How many days does {she} need for a book of {a} pages?"),
    group("division", "a=10..60 b=4..16", 3, lambda v: v.a / v.b,
        "{a} kg of flour is divided evenly into {b} bags. How many kilograms go into each bag?"),
    group("multi_step", "a=5..15 b=8..24 c=11..35", 0, lambda v: v.a * v.b - v.c,
        "{name} buys {a} boxes of {b} pencils and gives {c} pencils to {other}. How many pencils "
        "does {name} have left?",
        "A cinema has {a} rows of {b} seats, but {c} seats are broken. How many seats can be used?",
        "{name} bakes {a} trays with {b} muffins on each tray and sells {c} of the muffins. How "
        "many muffins are left?"),
    group("multi_step", "a=5..15 b=7..12 c=11..35", 0, lambda v: v.a * v.b + v.c,
        "A florist sells {a} bouquets of {b} roses and {c} single roses. How many roses is that in "
        "all?",
        "A coach brings {a} bags with {b} balls each, and {c} loose balls. How many balls are "
        "there altogether?"),
    group("multi_step", "a=30..120 b=30..120 c=4..9", 0, lambda v: (v.a + v.b) / v.c,
        "{name} has {a} {things} and {other} has {b}. They put them together and share them "
        "equally among {c} children. How many {things} does each child get?",
        "A class collected {a} cans in May and {b} cans in June, then packed them into crates of "
        "{c}. How many crates were filled?"),
    group("multi_step", "a=300..600 b=11..40 c=20..40", 0, lambda v: (v.a + v.b) / v.c,
        "{a} pupils and {b} teachers go on a trip, and one bus seats {c} people. How many buses do "
        "they need?"),
    group("multi_step", "a=40..80 b=11..30 c=12..35", 0, lambda v: v.a + v.b - v.c,
        "A bus has {a} passengers. At the next stop {b} people get on and {c} get off. How many "
        "passengers are on the bus now?",
        "{name} had {a} {things}, won {b} more and then lost {c}. How many {things} does {she} "
        "have now?"),
    group("multi_step", "a=11..24 b=4..8 c=3..12", 0, lambda v: v.a * v.b * v.c,
        "{name} earns ${a} an hour and works {b} hours a day. How much does {she} earn in {c} "
        "days?",
        "A warehouse has {c} aisles with {b} shelves each, and every shelf holds {a} boxes. How "
        "many boxes fit into the warehouse?"),
    group("multi_step", "a=30..120 b=15..28 c=2..6", 0, lambda v: 2 * (v.a + v.b),
        "A rectangular field is {a} m long and {b} m wide. How many metres of fence go around it?"),
    group("multi_step", "a=90..150 b=11..30 c=12..35", 0, lambda v: v.a - v.b - v.c,
        "A roll holds {a} m of cable. An electrician cuts off {b} m and then another {c} m. How "
        "many metres are left?"),
    group("multi_step", "a=14..60 b=3..25", 0, lambda v: 2 * v.a + v.b,
        "{name} has {a} {things}. {other} has {b} more {things} than {name}. How many {things} do "
        "they have together?"),
    group("money", "n=3..9 k=2..6 p=1.25..9.75/0.25", 2, lambda v: v.n * v.p,
        "{name} buys {n} notebooks at ${p:m} each. How much does {she} pay?",
        "A ferry ticket costs ${p:m}. How much do {n} tickets cost?"),
    group("money", "p=4.15..9.85/0.05 q=1.15..3.95/0.05", 2, lambda v: v.p + v.q,
        "A sandwich costs ${p:m} and a juice costs ${q:m}. How much do they cost together?"),
    group("money", "x=20..60/5 p=7.35..18.85/0.05", 2, lambda v: v.x - v.p,
        "{name} pays for a book that costs ${p:m} and hands over ${x}. How much change does {she} "
        "get?",
        "A pen and a diary cost ${x} together, and the diary alone costs ${p:m}. What does the "
        "pen cost?",
        "{name} wants a lamp that costs ${x} and has saved ${p:m}. How much more money does {she} "
        "need?"),
    group("money", "x=50..90/5 n=3..6 p=1.5..7.25/0.25", 2, lambda v: v.x - v.n * v.p,
        "{name} has ${x}. {She} buys {n} pens at ${p:m} each. How much does {she} have left?"),
    group("money", "n=3..8 p=2.5..9.5/0.25 q=11.5..28.5/0.5", 2, lambda v: v.n * v.p + v.q,
        "{name} buys {n} mugs at ${p:m} each and a teapot for ${q:m}. How much does {she} spend?"),
    group("money", "n=2..6 k=2..5 p=8..16/0.5 q=2..7.5/0.25", 2, lambda v: v.n * v.p + v.k * v.q,
        "A kiosk sells {n} lunches at ${p:m} each and {k} cakes at ${q:m} each. How much does it "
        "take in?",
        "An adult ticket costs ${p:m} and a child ticket costs ${q:m}. How much do {n} adult and "
        "{k} child tickets cost?"),
    group("percentage", "p=5..95/5 b=40..600/20", 0, lambda v: v.p * v.b / 100,
        "{p}% of the {b} pupils at a school walk to class. How many pupils walk?",
        "What is {p}% of {b}?",
        "Of the {b} trees in an orchard, {p}% are pear trees. How many pear trees are there?"),
    group("percentage", "p=5..60/5 b=40..400/20", 2, lambda v: v.b - v.p * v.b / 100,
        "A jacket costs ${b} and is on sale for {p}% off. What is the sale price?",
        "In a stadium, {p}% of the {b} seats are taken. How many seats are empty?",
        "{name} needs ${b} for a trip and has already saved {p}% of it. How much is still missing?",
        "A reservoir held {b} million litres and lost {p}% of its water in the drought. How many "
        "million litres remained?"),
    group("percentage", "p=5..40/5 b=40..480/20", 2, lambda v: v.b + v.p * v.b / 100,
        "{name} earns ${b} a week and gets a raise of {p}%. How much does {she} earn a week now?",
        "A restaurant bill is ${b}. {name} leaves a {p}% tip. How much does {she} pay in total?",
        "A club of {b} members grew by {p}% in a year. How many members does it have now?"),
    group("percentage", "a=12..45 b=48..120", 2, lambda v: v.a * 100 / v.b,
        "{name} answered {a} of {b} questions correctly. What percentage did {she} get right?"),
    group("percentage", "a=80..120/10 b=130..180/10", 2, lambda v: (v.b - v.a) * 100 / v.a,
        "The price of a tram pass rose from ${a} to ${b}. By what percentage did it rise?"),
    group("percentage", "p=10..50/10 a=36..180", 2, lambda v: v.a * 100 / (100 - v.p),
        "After a discount of {p}% a lamp costs ${a}. What was its price before the discount?"),
    group("unit_conversion", "a=2..12/0.5", 0, lambda v: v.a * 60,
        "How many minutes are there in {a} hours?"),
    group("unit_conversion", "a=90..240/15", 2, lambda v: v.a / 60, "A film lasts {a} minutes. How "
        "many hours is that?"),
    group("unit_conversion", "a=4.2..19.8/0.1", 0, lambda v: v.a * 1000, "{name}'s dog weighs {a} "
        "kg. How many grams is that?"),
    group("unit_conversion", "a=150..950/50", 2, lambda v: v.a / 1000, "A bottle holds {a} ml. How "
        "many litres is that?"),
    group("unit_conversion", "a=3..12", 0, lambda v: v.a * 12, "A workbench is {a} feet long. "
        "What is its length in inches?"),
    group("unit_conversion", "a=3..19", 0, lambda v: v.a * 7, "A cruise lasts {a} weeks. How many "
        "days is that?"),
    group("unit_conversion", "a=2.4..9.6/0.1 b=20..80/5", 0, lambda v: v.a * 100 / v.b, "A ribbon "
        "{a} m long is cut into pieces of {b} cm. How many pieces are there?"),
    group("unit_conversion", "a=3..9 b=150..450/10", 2, lambda v: v.a * v.b / 1000, "One cake "
        "needs {b} g of flour. How many kilograms of flour do {a} cakes need?"),
    group("average", "a=55..99 b=55..99 c=55..99", 1, lambda v: (v.a + v.b + v.c) / 3,
        "{name} scored {a}, {b} and {c} in three tests. What is {her} average score?",
        "Find the average of {a}, {b} and {c}."),
    group("average", "a=11..28 b=11..28 c=11..28 d=11..28", 2,
        lambda v: (v.a + v.b + v.c + v.d) / 4,
        "The noon temperatures on four days were {a}, {b}, {c} and {d} degrees. What was the mean "
        "temperature?",
        "{name} caught {a} fish on Monday, {b} on Tuesday, {c} on Thursday and {d} on Sunday. How "
        "many fish did {she} catch on average on those days?"),
    group("average", "n=4..12 a=12..40", 0, lambda v: v.n * v.a, "{name} averaged {a} points over "
        "{n} games. How many points did {she} score in all?"),
    group("rate", "s=12..95 t=1.5..8/0.5", 1, lambda v: v.s * v.t,
        "A cyclist rides at {s} km per hour. How far does he get in {t} hours?"),
    group("rate", "d=90..480/10 s=40..120/5", 2, lambda v: v.d / v.s,
        "How many hours does a train take to cover {d} km at {s} km per hour?"),
    group("rate", "a=120..900 b=3..12", 1, lambda v: v.a / v.b,
        "{name} typed {a} words in {b} minutes. How many words per minute is that?",
        "A car covers {a} km in {b} hours. What is its average speed in km per hour?"),
    group("rate", "n=3..8 p=4.5..18/0.5 m=9..15", 2, lambda v: v.p / v.n * v.m,
        "{n} pens cost ${p:m}. How much do {m} pens cost at the same price?"),
    group("rate", "a=30..90/6 b=3..6 c=7..20", 2, lambda v: v.a / v.b * v.c,
        "A tap fills {a} litres in {b} minutes. How many litres does it fill in {c} minutes?"),
    group("rate", "a=4..9 d=150..650/50", 2, lambda v: v.a * v.d / 100,
        "A car uses {a} litres of petrol per 100 km. How many litres does it use for {d} km?"),
    group("rate", "s=12..24 t=13..28 h=2..5", 0, lambda v: (v.s + v.t) * v.h,
        "Two cyclists leave {town} in opposite directions, one at {s} km per hour and the other at "
        "{t} km per hour. How many kilometres apart are they after {h} hours?"),
    group("rate", "a=4..9 b=10..30 c=2..6", 0, lambda v: v.a * v.b / v.c,
        "{a} painters need {b} days to paint a school. How many days do {c} painters need?"),
    group("irrelevant_number", "a=40..90 b=11..30 y=8..14 n=2..4", 0, lambda v: v.a - v.b,
        "{name} has {n} brothers and {a} {things}. {She} gives away {b} {things}. How many "
        "{things} does {she} have left?",
        "{name} bought {a} {fruits} and {n} loaves of bread. By Friday {b} of them were eaten. How "
        "many {fruits} were left?",
        "At 9 o'clock there were {a} people in room 204, and by 10 o'clock {b} of them had left. "
        "How many people were still in the room?"),
    group("irrelevant_number", "a=40..90 b=11..30 p=12..28/0.5", 0, lambda v: v.a - v.b,
        "{name} paid ${p:m} for a sack of {a} {fruits} and found that {b} of them were rotten. How "
        "many good {fruits} did {she} get?"),
    group("irrelevant_number", "a=40..90 b=11..30 y=8..14", 0, lambda v: v.a + v.b,
        "{name} is {y} years old. {She} has {a} {things} and gets {b} more from {other}. How many "
        "{things} does {she} have now?",
        "In 2019 a chess club had {a} members. Since then {b} people have joined. How many members "
        "does it have now?"),
    group("irrelevant_number", "a=11..24 b=3..9 n=30..55", 0, lambda v: v.a * v.b,
        "A shop owner, {n} years old, fills {a} shelves with {b} jars of jam each. How many jars "
        "does the owner put on the shelves?"),
    group("irrelevant_number", "a=11..24 p=1.5..3.5/0.25 n=12..88", 2, lambda v: v.a * v.p,
        "{name} takes bus number {n}. A ride costs ${p:m}, and {she} rides {a} times a month. How "
        "much does {she} spend on it in a month?"),
    group("number_words", "a=3..9 b=2..7", 0, lambda v: v.a * v.b,
        "{a:W} friends each bring {b:w} {fruits} to a picnic. How many {fruits} is that?"),
    group("number_words", "a=2..6 b=5..20", 0, lambda v: 12 * v.a - v.b, "{name} bakes {a:w} dozen "
        "cookies and sells {b} of them. How many cookies are left?"),
    group("number_words", "a=21..48 b=22..59", 0, lambda v: v.a + v.b, "{name} picked {a:w} "
        "{fruits} and {other} picked {b:w}. How many did they pick together?"),
    group("number_words", "a=14..48", 0, lambda v: 2 * v.a, "{other} has twice as many {things} as "
        "{name}, who has {a}. How many {things} does {other} have?"),
    group("number_words", "b=24..90/2", 0, lambda v: v.b / 2, "Half of the {b} members of a choir "
        "are tenors. How many tenors are there?"),
    group("number_words", "a=6..48", 0, lambda v: 2 * v.a, "How many single socks are there in "
        "{a:w} pairs of socks?"),
    group("number_words", "a=4..9", 0, lambda v: 14 * v.a, "{name} drinks {a:w} glasses of water a "
        "day. How many glasses does {she} drink in a fortnight?"),
    group("negative_wording", "a=50..120 b=12..38", 0, lambda v: v.a - v.b,
        "{name} has {a} {things} and {other} has {b}. How many fewer {things} does {other} have?",
        "Of the {a} guests who were invited, {b} did not come. How many came?",
        "All but {b} of the {a} pupils passed the test. How many passed?",
        "{name} has {b} fewer {things} than {other}, who has {a}. How many does {name} have?"),
    group("negative_wording", "a=50..120 b=12..38", 0, lambda v: v.a + v.b,
        "{name} has {a} {things}, which is {b} fewer than {other} has. How many does {other} have?",
        "After giving {b} {things} to {other}, {name} has {a} left. How many did {name} have at "
        "first?",
        "{name} sold {b} {things} at a fair and now owns {a}. How many did {she} own before?"),
    group("order_of_operations", "a=11..60 b=3..12 c=3..12", 0, lambda v: v.a + v.b * v.c,
        "Add {a} to the product of {b} and {c}. What do you get?",
        "What is {a} plus {b} times {c}?"),
    group("order_of_operations", "a=60..120 b=11..30 c=11..29", 0, lambda v: v.a - (v.b + v.c),
        "Subtract the sum of {b} and {c} from {a}. What is left?"),
    group("order_of_operations", "a=40..90 b=11..38 c=3..9", 0, lambda v: (v.a - v.b) * v.c,
        "Multiply {c} by the difference between {a} and {b}. What is the result?",
        "{name} takes {b} away from {a} and multiplies what remains by {c}. What number does "
        "{she} get?"),
    group("order_of_operations", "a=16..60 b=7..15", 0, lambda v: 2 * v.a - v.b, "{name} doubles "
        "{a} and then takes away {b}. What number does {she} get?"),
    group("unanswerable", "a=12..60 b=10..30/5", 0, None,
        "{name} has {a} {things} and finds some more on the beach. How many does {she} have now?",
        "Each box holds {a} pencils. How many pencils are there altogether?",
        "{name} drives at {a} km per hour. How far does {she} drive before lunch?",
        "{name} buys {b} notebooks and pays with a $50 note. How much change does {she} get?",
        "A baker sold {a} rolls in the morning and several in the afternoon. How many rolls did he "
        "sell that day?",
        "A shirt is reduced by {b}%. How much does it cost now?"),
]
# fmt: on
