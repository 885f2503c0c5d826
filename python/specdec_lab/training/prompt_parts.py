"""The parts that varied_prompts.py makes users' turns of: fillers, and templates by category.

In a template, {name} stands for one of the fillers of that name, another one at each place. {n} is
a small whole number, {big} a larger one, {passage} a paragraph of documentation.
"""

from __future__ import annotations

import textwrap


def _lines(text: str) -> tuple[str, ...]:
    """A text's lines; one that is indented further than the first goes on with the line before."""
    lines: list[str] = []
    for line in textwrap.dedent(text).strip("\n").splitlines():
        if line.startswith(" "):
            lines[-1] += " " + line.strip()
        elif line:
            lines.append(line)
    return tuple(lines)


def _items(text: str) -> tuple[str, ...]:
    """The parts between semicolons."""
    return tuple(" ".join(item.split()) for item in text.split(";"))


FILLERS: dict[str, tuple[str, ...]] = {
    "science": _items("""
        photosynthesis; plate tectonics; black holes; antibiotics; the water cycle; superconductors;
        enzymes; tides; natural selection; the immune system; semiconductors; entropy; nuclear
        fusion; the ozone layer; vaccines; DNA replication; radioactive decay; the Doppler effect;
        acids and bases; catalysts; lightning; earthquakes; the nitrogen cycle; friction; magnetism;
        general relativity; quantum entanglement; stem cells; coral reefs; fermentation; batteries;
        lasers; GPS satellites; the human eye; hormones; the greenhouse effect; volcanoes; osmosis;
        the periodic table; gene editing; prime numbers; probability; chaos theory; graph theory;
        calculus; statistical significance; Bayes' theorem; machine learning; neural networks;
        encryption; the carbon cycle; dark matter; cell division; proteins; sleep; memory in the
        brain; muscles; photons; sound waves; resonance; surface tension; refrigeration; jet
        engines; solar panels; wind turbines; tidal power; desalination; soil; pollination;
        migration of birds; camouflage; viruses; bacteria; blood pressure; diabetes; allergies;
        nerves; crystals; polymers; alloys; rust; combustion; orbital mechanics; comets; the life of
        a star; the moon's phases
    """),
    "history": _items("""
        the fall of the Roman Empire; the French Revolution; the Silk Road; the Industrial
        Revolution; the Cold War; the Renaissance; the printing press; the Black Death; the Ottoman
        Empire; ancient Egypt; the Mongol Empire; the Great Depression; the Meiji Restoration; the
        Magna Carta; the Enlightenment; the abolition of slavery; women's suffrage; the space race;
        decolonisation in Africa; the Treaty of Versailles; the Aztecs; the Vikings; the partition
        of India; the Berlin Wall; the Marshall Plan; the Phoenicians; the Byzantine Empire;
        feudalism; the Hanseatic League; the gold standard; the Opium Wars; the Haitian Revolution;
        the Age of Discovery
    """),
    "ideas": _items("""
        utilitarianism; stoicism; existentialism; inflation; supply and demand; comparative
        advantage; opportunity cost; monopolies; the social contract; free will; the trolley
        problem; democracy; federalism; the separation of powers; freedom of speech; globalisation;
        taxation; central banks; trade unions; universal basic income; nationalism; liberalism; the
        rule of law; impressionism; jazz; Gothic architecture; the sonnet; tragedy in ancient
        Greece; magical realism; propaganda; urbanisation; public education; copyright; privacy; the
        ethics of animal testing; behavioural economics; game theory; cultural relativism; the
        philosophy of science; moral luck; game design
    """),
    "everyday": _items("""
        baking sourdough bread; growing tomatoes on a balcony; learning the guitar; training for a
        marathon; saving money for a house; moving to a new city; adopting a rescue dog; organising
        a small kitchen; planning a wedding on a budget; learning Spanish; sleeping better; starting
        a podcast; writing a CV; preparing for a job interview; repairing a bicycle; painting a
        room; composting; meditating; public speaking; cooking for a large family; travelling with
        children; buying a used car; setting up a home office; keeping a diary; reducing plastic
        waste; knitting a scarf; photographing birds; running a book club; teaching a child to read;
        making friends as an adult; hiking in winter; making coffee; brewing tea; choosing a laptop;
        backing up files; managing email; giving feedback; negotiating a salary; chess openings;
        volunteering; caring for house plants; playing tennis; swimming; yoga at home; keeping bees;
        sewing; camping
    """),
    "place": _items("""
        Lisbon; Kyoto; Cape Town; Reykjavik; Mexico City; Istanbul; Prague; Hanoi; Marrakesh;
        Vancouver; Buenos Aires; Edinburgh; Seoul; Nairobi; Sydney; Venice; Cairo; Havana;
        Copenhagen; Singapore; New Orleans; Athens; Lima; a small village in the Alps; a lighthouse
        on a cliff; an old railway station; a crowded night market; a library after closing time; a
        desert research station; a fishing port in the fog; an abandoned theatre
    """),
    "role": _items("""
        a retired sea captain; a medieval blacksmith; a detective in Paris; a patient science
        teacher; a chef; an astronaut on Mars; a grumpy librarian; a travel guide; a football coach;
        a museum curator; a time traveller; a doctor in a small town; a pirate; a financial adviser;
        a stand-up comedian; a gardener; a robot butler; a famous violinist; an explorer in the
        Arctic; a career counsellor; a dragon who likes tea; a news anchor; a wise old wizard; an
        ancient Roman senator; a video game designer; a personal trainer; a beekeeper; a poet
    """),
    "reader": _items("""
        a ten-year-old; a beginner; a busy manager; my grandmother; a first-year student; a tourist;
        an expert; someone who has never heard of it; a sceptical friend; a class of teenagers; a
        new colleague; a farmer
    """),
    "constraint": _items("""
        in fewer than 100 words; in two paragraphs; in one sentence; as a bulleted list; in simple
        words; step by step; with an example; in a friendly tone; in a formal tone; with a short
        introduction and a conclusion; as a numbered list; without technical terms; with pros and
        cons; in about 200 words; in the form of a dialogue; in three short paragraphs; with an
        analogy; as a table; in a humorous way; with a title and three headings
    """),
    "thing": _items("""
        a lost key; a letter that arrives years too late; two rival bakers; a talking cat; the last
        tree in a city; a mysterious map; a storm at sea; a broken clock; a robot that learns to
        paint; an unexpected friendship; a secret garden; a forgotten song; a train that never
        stops; a village without mirrors; a stolen painting; a child who can hear colours; the first
        snow of the year; a chess game; a haunted piano; a message in a bottle
    """),
    "text_kind": _items("""
        a short story; a poem; a haiku; a limerick; a blog post; a product description; a press
        release; a song; a letter; a speech; a diary entry; a fairy tale; a scene of a play; a
        newspaper article; a fable; a review; a social media post; an advertisement; an opening
        paragraph; an outline of an essay; a toast; an obituary
    """),
    "product": _items("""
        a solar-powered backpack; a smart water bottle; noise-cancelling headphones; an electric
        bicycle; a board game; a vegan restaurant; a language-learning app; a fitness tracker; a
        coffee subscription; a folding kayak; a new smartphone; a children's book; an online course;
        a second-hand shop; a garden tool; a music festival
    """),
    "letter": _items("""
        my landlord about a broken heater; a colleague who missed a deadline; a customer whose order
        was late; my manager to ask for a day off; a teacher to thank her; a hotel about a lost bag;
        the city council about a park; a friend who is moving away; a professor to ask for a
        recommendation; the neighbours about a party; an airline about a cancelled flight; a company
        to apply for an internship; my team about a new schedule
    """),
    "language": _items("""
        French; German; Spanish; Italian; Portuguese; Dutch; Latin; Swedish; Polish; Japanese;
        Chinese; Russian
    """),
    "sentence": _lines("""
        The train leaves at eight, so we should meet at the station a little earlier.
        She opened the window because the room was far too warm.
        Could you tell me where the nearest pharmacy is?
        We have lived in this house for more than twenty years.
        If it rains tomorrow, the concert will take place indoors.
        He forgot his umbrella and came home completely wet.
        The children built a castle of sand while their parents read.
        I would like a table for four people at seven o'clock, please.
        The museum was closed, but the garden behind it was open.
        Thank you for your letter; I was very happy to hear from you.
        The new bridge will make the way to work much shorter.
        Nobody knew who had left the parcel in front of the door.
        Their goal was to finish the work before the end of the summer.
        In the end, the simplest explanation turned out to be the right one.
        the meeting have been moved to friday and everyone need to bring they reports
        me and him was going to the shop when it start to rain very hard
        the results is not what we expected, however we was still satisfied with it
    """),
    "program": _items("""
        reverses a string; checks whether a number is prime; sorts a list of tuples by the second
        element; finds the longest word in a file; merges two sorted lists; counts the vowels of a
        text; computes a factorial; removes duplicates from a list and keeps the order; finds the
        shortest path in a grid; parses a CSV file; validates an email address; converts
        temperatures; implements a stack; implements a queue with two stacks; computes the n-th
        Fibonacci number; checks balanced brackets; transposes a matrix; implements binary search;
        implements a linked list; prints a calendar; counts words by frequency; rotates an array;
        flattens a nested list; finds the two numbers that add up to a target; computes the greatest
        common divisor; reads a JSON file; generates a random password; encodes a message with a
        Caesar cipher; checks whether a word is a palindrome; finds all permutations of a string;
        implements an LRU cache; downloads a web page; rolls two dice many times; finds the median
        of a list; computes the edit distance of two words; draws a triangle of stars; plays
        tic-tac-toe
    """),
    "code_language": _items(
        "Python; Python; Python; JavaScript; Java; C++; C; Go; Rust; SQL; Bash; TypeScript"
    ),
    "code_topic": _items("""
        recursion; hash tables; pointers; big-O notation; closures; inheritance; unit tests; version
        control; threads; REST APIs; SQL joins; regular expressions; list comprehensions;
        exceptions; garbage collection; HTTP cookies; binary trees; dynamic programming; virtual
        environments; Docker; caching; race conditions; type hints
    """),
    "name": _items("""
        Anna; Ben; Carla; David; Elif; Farid; Grace; Hiro;
        Ines; Jonas; Kofi; Lena; Mei; Nadia; Omar; Priya
    """),
    "goods": _items("""
        apples; notebooks; marbles; tickets; cookies; pencils;
        eggs; stamps; books; oranges; coins; cards
    """),
    "shop": _items("""
        a bakery; a bookshop; a farm; a bicycle shop;
        a cinema; a school; a factory; a florist; a museum
    """),
    "animal": _items("""
        octopuses; wolves; bees; elephants; owls; dolphins; ants; penguins; bats; chameleons;
        salmon; crows; cats; sharks
    """),
    "style": _items("""
        more formal; shorter; funnier; more polite; easier to read; more dramatic; as a poem; as a
        list; as an email; from the point of view of a child; as a news report; with more detail; in
        the past tense; as a dialogue
    """),
    "decade": _items("1920s; 1950s; 1960s; 1970s; 1980s; 1990s; 2000s"),
}  # fmt: skip

FILLERS["topic"] = FILLERS["science"] + FILLERS["history"] + FILLERS["ideas"] + FILLERS["everyday"]

TEMPLATES: dict[str, tuple[str, ...]] = {
    "writing": _lines("""
        Write {text_kind} about {thing}.
        Write {text_kind} about {topic}, {constraint}.
        Write {text_kind} for {product}. Make it {style}.
        Write an email to {letter}.
        Draft a short message to {letter}, {constraint}.
        Compose {text_kind} set in {place} in which {thing} plays a part.
        Describe {place} in the early morning, {constraint}.
        Create a character for a novel: {role} who finds {thing}. Describe how they look, speak and
            think.
        Give me five titles for {text_kind} about {topic}.
        Continue this story: "When {name} came to {place}, nobody was waiting."
        Write the first paragraph of a novel that begins in {place} in the {decade}.
        I am writing {text_kind} about {thing}. Suggest three different endings.
    """),
    "roleplay": _lines("""
        Pretend that you are {role}. Tell me about {topic}.
        You are {role}. I visit you in {place} and ask how your day was. What do you answer?
        Act as {role} and give me advice on {everyday}.
        Imagine you are {role} who meets {role}. Write down your conversation.
        From now on answer as {role} would: what do you think of {ideas}?
        Take the role of {role}. Explain {science} to {reader}.
        You are an interviewer and I am {role}. Ask me five questions.
        Play the part of {role} who is in {place} for the first time, and describe what you see.
    """),
    "reasoning": _lines("""
        {name} is taller than {name}, and {name} is shorter than both. Who is the tallest? Explain.
        If all {animal} are animals and some animals are tame, does it follow that some {animal} are
            tame?
        There are {n} boxes of {goods}, and one of them is heavier. How do you find it with a pair
            of scales?
        What is wrong with this argument: "{name} likes {goods}, so everybody from {place} likes
            them"?
        {name} left at {n} o'clock and the way takes {big} minutes. When does {name} arrive? Show
            your reasoning.
        Which one does not belong with the others: {animal}, {animal}, {goods}, {animal}? Why?
        What would happen if there were no {animal}? Think step by step.
        Is it better to spend {big} dollars on {product} or to save them? Weigh both sides.
        A man has {n} daughters, and each of them has one brother. How many children are there?
            Explain your answer.
        Give an argument for and one against this claim: {ideas} matters more today than in the
            {decade}.
    """),
    "math": _lines("""
        {shop} sells {big} {goods} on Monday and {n} times as many on Tuesday. How many does it sell
            in both days?
        {name} has {big} {goods}, gives {n} to {name} and buys {big} more. How many does {name} have
            now?
        Solve for x: {n}x + {big} = {big}{n}.
        A rectangle is {big} cm long and {n} cm wide. What are its area and its perimeter?
        What is {n}% of {big}00? Show how you compute it.
        A car goes {big} km in {n} hours. What is its average speed, and how far does it go in {n}
            more hours?
        Find the derivative of f(x) = {n}x^3 - {big}x + {n}.
        {name} earns {big} dollars an hour and works {n} hours a day. How much is that in a week of
            5 days?
        What is the probability of drawing {n} red {goods} in a row from a bag with {big} red and
            {n} blue ones?
        Find all roots of x^2 - {big}x + {n} = 0.
        The sum of two numbers is {big}{n} and their difference is {n}. What are the numbers?
        Explain {reader} how to add fractions with different denominators, such as 1/{n} and
            {n}/{big}.
    """),
    "coding": _lines("""
        Write a {code_language} function that {program}.
        Write a {code_language} program that {program}. Add comments.
        How can I write a function in {code_language} that {program}? Explain the code {constraint}.
        Explain {code_topic} in {code_language} with a short example.
        What is the difference between {code_topic} and {code_topic}?
        Write unit tests in {code_language} for a function that {program}.
        My {code_language} code should be one that {program}, but it is slow. How can I make it
            faster?
        Write a {code_language} class for {shop} that keeps track of {goods}.
        Create an HTML page for {product} with a title, a short text and a button.
        Which algorithm {program}? Describe it in pseudocode and give its complexity.
    """),
    "extraction": _lines("""
        Extract the important terms of this text as a list:\\n\\n{passage}
        Read the text below and answer in JSON with the keys "subject" and "summary".\\n\\n{passage}
        List all names, numbers and dates in this text: {name} from {place} sold {big} {goods} for
            {n} dollars each to {name}, who paid on the {n}th of May.
        Make a table of these sales: {name} sold {big} {goods}; {name} sold {n} {goods}; {name} sold
            {big} {goods}. Who sold the most?
        Which topic is this text about, and which three words describe it best?\\n\\n{passage}
        Sort these words into categories: {goods}, {animal}, {place}, {goods}, {animal}, {place}.
        Rate each review from 1 to 5: "{product} is wonderful, I use it daily." "It broke after {n}
            days." "It is fine, but costs {big} dollars."
        From the sentence "{name} moved from {place} to {place} in the {decade}", give the person,
            both places and the time as CSV.
    """),
    "stem": _lines("""
        Explain {science} to {reader}.
        Explain {science} {constraint}.
        What is {science}, and why does it matter?
        How do scientists study {science}? Name {n} methods.
        What are common misunderstandings about {science}?
        Describe the connection between {science} and {science}.
        How would you build a simple experiment that shows {science} to {reader}?
        Which discoveries led to what we know about {science}?
        What are the uses of {science} in daily life, {constraint}?
        How do {animal} survive the winter, and what do they eat?
    """),
    "humanities": _lines("""
        What were the causes of {history}?
        Explain {history} {constraint}.
        How did {history} change the life of ordinary people?
        Explain {ideas} to {reader}.
        Discuss {ideas} {constraint}.
        Compare {ideas} with {ideas}.
        What can we learn today from {history}?
        Write a lesson plan on {history} for {reader}.
        What are the main arguments for and against {ideas}?
        Name {n} people who were important for {history}, and say why.
        How are {ideas} and {history} related?
    """),
    "how_to": _lines("""
        How do I get started with {everyday}?
        Give me {n} tips for {everyday}, {constraint}.
        What mistakes do people make when it comes to {everyday}?
        I want to get better at {everyday}, but I have only {n} hours a week. What should I do?
        Make a plan for {everyday} over the next {n} weeks.
        What do I need to buy for {everyday}?
        Which is better for {reader}: {everyday} or {everyday}?
        Plan a trip of {n} days to {place} for {reader}.
        What should I see in {place}, and what should I eat there?
        Suggest a recipe with {goods} and {goods} that takes less than {big} minutes.
    """),
    "lists": _lines("""
        List {n} facts about {animal}.
        Give me {n} ideas for {product}.
        Name {n} books or films about {topic} and describe each in a sentence.
        What are the advantages and disadvantages of {everyday}?
        List {n} questions that {reader} might ask about {topic}.
        Write a checklist for {everyday}.
        Suggest {n} names for {product}, and say what each one evokes.
        Make a quiz with {n} questions and answers on {topic}.
    """),
    "passages": _lines("""
        Summarize the following text.\\n\\n{passage}
        Summarize this text {constraint}:\\n\\n{passage}
        {passage}\\n\\nWhat is the main point of this text?
        {passage}\\n\\nExplain this to {reader}.
        Read this and write three questions about it, with answers:\\n\\n{passage}
        Answer from the text alone: what is it for, and when would one use it?\\n\\n{passage}
        Rewrite this text {constraint}.\\n\\n{passage}
    """),
    "rewriting": _lines("""
        Translate into {language}: "{sentence}"
        How do you say "{sentence}" in {language}?
        Correct the mistakes in this sentence: "{sentence}"
        Rewrite this sentence in three different ways: "{sentence}"
        Make this {style}: "{sentence} {sentence}"
        Write a paragraph that begins with: "{sentence}"
        What does this sentence mean, and who might say it? "{sentence}"
    """),
    "questions": _lines("""
        What is {topic}?
        Why is {topic} important?
        Tell me something interesting about {topic}.
        Who should learn about {topic}?
        What is the difference between {topic} and {topic}?
        When did people first become interested in {topic}?
        What do you know about {place}?
        What happened in {place} in the {decade}?
        Can you help me understand {topic}? I am {reader}.
        What would {role} say about {topic}?
    """),
}  # fmt: skip

FOLLOW_UPS = _lines("""
    Make it {style}.
    Can you give an example?
    Now do the same {constraint}.
    Summarize your answer in one sentence.
    Why is that so?
    Rewrite your answer for {reader}.
    What would {role} say to that?
    Translate your answer into {language}.
    List the most important points.
    Are you sure? Check your answer.
    What are the alternatives?
    Thank you! And how does this relate to {topic}?
    Now write {text_kind} about it.
    Turn it into {text_kind} with the title "{name} and {thing}".
""")

POLITE = _items("""
    Please {}; Can you help me? {}; {} Thanks!; Hi! {}; I have a question. {};
    {} Keep it brief.; {} Be precise.
""")

SYSTEMS = _lines("""
    You are a helpful assistant. The user asks about {topic}.
    You are an AI model that helps people with {everyday}.
    You are a teacher. Your students ask about {science}.
    You are a programming assistant. The user asks about {code_topic} in {code_language}.
    You are an expert on {history}.
    You are a writer who helps others with {text_kind}.
    You are a mathematics tutor who solves problems step by step.
    You are an assistant for tasks such as rewriting and summarizing texts on {topic}.
""")
